"""Parts of `course plan`: the question in its arguments, stored answers, the card, and messages while it works."""
