"""What authors and instructors run: grading a class, releasing exercises, demos, checking and executing notebooks.

It stands on `course_utils`, and never the other way round: nothing that a learner imports needs it.
"""
