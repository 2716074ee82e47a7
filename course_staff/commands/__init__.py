"""The staff's part of `course`. Each command is a module here with `HELP`, `add_arguments` and `run`, named in pyproject.toml."""
