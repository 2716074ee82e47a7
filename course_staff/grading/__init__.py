"""From an author's notebook to what is handed out, and from what is handed in to grades that a submission cannot forge."""
