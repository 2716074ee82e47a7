"""`python -m course_utils.cli`, the same as `course`, for machines on which scripts are not on the path."""

import sys

from course_utils.cli import main

if __name__ == "__main__":
    sys.exit(main())
