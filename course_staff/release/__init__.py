"""From an author's notebook in `solutions/` to what is handed out: exercises, and a set that checks them without the answers.

`source` reads the notebook, `case_runner` tries its answers, `release` makes both files, or `nbgrader` its own; `release_sets` does
so for many, but for those that `cache` or `stamps` know to be unchanged. `skeleton` is what a new question begins with.
"""
