from figures import close_figures, letters_are_readable  # noqa: F401  (fixtures of every test here)
