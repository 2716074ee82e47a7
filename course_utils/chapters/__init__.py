"""What every chapter has in common: its opening, its anatomy, its execution."""

from course_utils.chapters.opening import begin
from course_utils.chapters.places import Place, chapters_in, find_place

__all__ = ["Place", "begin", "chapters_in", "find_place"]
