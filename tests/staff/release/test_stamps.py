"""A set that stands as it was released is known by its stamp, and one that somebody changed is not."""

import shutil
from pathlib import Path

from course_staff.release import release_sets
from course_utils.cli import main
from course_utils.files import exercises_of

ROOT = Path(__file__).parents[3]


def test_what_differs_is_said_with_what_to_do(checkout, monkeypatch, capsys):
    name = "00_start_here"
    shutil.copy(ROOT / "solutions" / f"{name}.ipynb", checkout / "solutions")
    exercise = Path(exercises_of(name)).name
    text = (ROOT / "exercises" / exercise).read_text("utf-8")
    texts = {checkout / "exercises" / exercise: text, checkout / "course_utils/grading/sets" / f"{name}.json": "{}"}
    counts = []
    monkeypatch.setattr(
        release_sets, "release_sets", lambda paths, *_: counts.append(len(paths)) or [texts] * len(paths)
    )
    assert main(["release", "--check", "00"]) == 1
    assert f"exercises/{exercise} is missing: `course release {name}` writes it." in capsys.readouterr().out
    answered = text.replace("EXERCISE q1", "EXERCISE q1, answered")
    (checkout / "exercises" / exercise).write_text(answered, encoding="utf-8")
    assert main(["release", "--check", "00"]) == 1
    output = capsys.readouterr().out
    assert "it was edited or answered" in output
    assert f"`course release {name}` rewrites it and saves a copy" in output
    assert main(["release", "00"]) == 0
    assert "written; old copy in " in capsys.readouterr().out

    assert main(["release", "--check", "00"]) == 0
    assert counts == [1, 1, 1, 0], "a set that stands as it was released is not run again"
    (checkout / "exercises" / exercise).write_text(answered, encoding="utf-8")
    assert main(["release", "--check", "00"]) == 1
    assert counts[-1] == 1, "but one that somebody changed is"
