"""Chapters as files: executed, cleaned, stamped and held against the rules for a chapter.

- `execute` runs them, `clean` makes the result fit for `stored` outputs and `files`.
- `course stamp` writes `setup_cell`, `glossary` links, `successor`, `readme`, `address` and `weekend`.
- `course lint` reads `anatomy`, `sentences`, `links`, `traces`, `shown` and `naming`.
"""
