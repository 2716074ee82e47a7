"""Chapters as files: executed, cleaned, stamped and held against the rules for a chapter.

- `execute` runs them, `clean` makes the result fit for `stored` outputs and `files`.
- `course stamp` writes `setup_cell`, with the repository's `address`, `glossary` links and `successor`.
- `course lint` reads `anatomy`, `sentences`, `links`, `traces` and `shown`.
"""
