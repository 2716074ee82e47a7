"""What the chapters import for their bets."""

from course_utils.desk.bets import bet, settle
from course_utils.desk.bets_figure import picture

__all__ = ["bet", "picture", "settle"]
