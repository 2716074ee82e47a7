from figures import _close_figures, _letters_are_readable  # noqa: F401  (fixtures of every test here)
