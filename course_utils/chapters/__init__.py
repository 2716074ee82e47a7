"""Opening a chapter, and finding the chapters on this machine."""

from course_utils.chapters.opening import begin
from course_utils.chapters.places import (
    Place,
    called,
    chapters_in,
    exercises_of,
    find_place,
    numbered,
    set_of,
    some,
    the_one,
)

__all__ = [
    "Place",
    "begin",
    "called",
    "chapters_in",
    "exercises_of",
    "find_place",
    "numbered",
    "set_of",
    "some",
    "the_one",
]
