"""The messages of a plan while it is worked out, in a file of their own, since a stored answer needs nothing else of a plan."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_utils.memory.planning.result import Plan, Row


class Progress:
    """Gets the messages of a plan and ignores them; a subclass overrides the methods whose messages it shows."""

    def report(self, activity: str) -> None:
        """Called with a phrase that says what is done next."""

    def show_verdict(self, plan: "Plan") -> None:
        """Called with the plan as soon as it has a verdict, still without rows and largest sizes."""

    def show_row(self, row: "Row") -> None:
        """Called with each row that fits, when it is found."""
