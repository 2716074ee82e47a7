"""`course check` as a command."""

import pytest

from course_utils.cli import main
from course_utils.cli.check import find_notebook, find_set


@pytest.mark.parametrize("name", ["3", "03", "03_adamw"])
def test_a_set_is_called_as_its_chapter(name, capsys):
    assert find_set(name) == find_set("exercises/03_exercises_adamw.ipynb") == "03_adamw"
    assert find_notebook(name).stem == "03_exercises_adamw"
    assert main(["check", "--reset", "--yes", name]) == 0
    assert "no progress to reset" in capsys.readouterr().out
