"""Opening a chapter, and finding the chapters on this machine."""

from course_utils.chapters.opening import begin
from course_utils.chapters.places import Place, called, chapters_in, find_place, numbered, some, the_one

__all__ = ["Place", "begin", "called", "chapters_in", "find_place", "numbered", "some", "the_one"]
