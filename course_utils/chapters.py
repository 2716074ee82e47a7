"""What the set-up cell of every chapter imports."""

from course_utils.desk.opening import begin

__all__ = ["begin"]
