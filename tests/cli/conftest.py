from dry_runs import _dry_runs_are_shared  # noqa: F401  (a fixture of every test here)
