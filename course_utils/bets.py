"""What the chapters import for their bets."""

from course_utils.desk.bets import bet, picture, settle

__all__ = ["bet", "picture", "settle"]
