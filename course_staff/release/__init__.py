"""From an author's notebook in `solutions/` to what is handed out: exercises, and a set that checks them without the answers."""
