"""What a plan tells on its way to the answer, which takes seconds."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_utils.memory.planning.answer import Plan, Row


class Progress:
    """Gets what is being done and what is known already, and does nothing with it; a subclass overrides what it shows."""

    def report(self, activity: str) -> None:
        """What is being done now."""

    def show_verdict(self, plan: "Plan") -> None:
        """The plan as soon as there is a verdict, without rows and largest sizes."""

    def show_row(self, row: "Row") -> None:
        """A row that fits, as it is found."""
