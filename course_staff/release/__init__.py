"""From an author's notebook in `solutions/` to what is handed out: exercises, and a set that checks them without the answers.

`source` reads the notebook, `case_runner` tries its answers, and `release` makes both files (`nbgrader` those of an assignment);
`release_sets` does so for all that `cache` and `stamps` do not know to be unchanged. A new question begins as a `skeleton`.
"""
