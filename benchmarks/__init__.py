"""Measurements side by side; they print ratios and assert nothing about time. Run one with `python -m benchmarks.NAME`."""
