"""Demos: a chapter's story for a class, written beside its notebook, shown in the browser, rehearsed by the tests."""

from course_staff.demos.script import Demo, Step, demos_in, read_demo

__all__ = ["SETTINGS", "Demo", "Step", "demos_in", "read_demo"]

SETTINGS = {"COURSE_DEVICE": "cpu", "COURSE_SEED": "0", "COURSE_READER": "0"}
"""What every demo runs with, besides its own scale: the same before a class as in its rehearsal."""
