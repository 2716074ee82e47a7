"""Every notebook has the anatomy of a chapter. That its cells run is checked beside this, with nbval; see the Makefile."""

from pathlib import Path

import pytest

from course_staff.notebooks.anatomy import violations_in

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_chapter_keeps_the_rules(path):
    violations = [str(violation) for violation in violations_in(path)]
    assert not violations, "\n" + "\n".join(violations)
