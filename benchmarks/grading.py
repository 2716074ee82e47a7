"""Seconds per submission of `course grade` on a class of honest AdamW notebooks, beside nbgrader's autograde on the same class.

nbgrader is not among the course's packages: name a folder that `pip install --target FOLDER nbgrader` has filled. It grades what
`course release --nbgrader` writes, and so judges the public cases only, as `course grade` does without the solutions.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from course_staff.grading.nbgrader import source_files
from course_staff.grading.release import write
from course_staff.grading.source import load_solutions, marker
from course_staff.notebooks.files import read_notebook
from course_utils.files import exercises_of
from course_utils.settings import environment_for_child

ROOT = Path(__file__).parents[1]
SET = "03_adamw"
CASES = ("all cases", "public cases")


def class_of(folder: Path, size: int) -> list[Path]:
    """`size` notebooks with right answers, the styles of the set's variants in turn."""
    authored = {each.question.id: each for each in load_solutions(ROOT / "solutions" / f"{SET}.ipynb")}
    paths = []
    for number in range(size):
        notebook = read_notebook(ROOT / exercises_of(SET))
        for cell in notebook["cells"]:
            if mark := marker(cell):
                each = authored[mark[1]]
                styles = [each.solution, *(variant.source for variant in each.question.variants)]
                answer = styles[number % len(styles)]
                cell["source"] = answer if answer.startswith("# EXERCISE") else f"# EXERCISE {mark[1]}\n{answer}"
        paths.append(folder / f"student{number:02d}.ipynb")
        paths[-1].write_text(json.dumps(notebook), encoding="utf-8")
    return paths


def by_course(folder: Path, hidden: bool) -> tuple[float, list[float]]:
    """Seconds for the whole class, and everybody's points; with or without hidden cases."""
    command = [sys.executable, "-m", "course_utils.cli", "grade", folder, "--set", SET, "--again"]
    more = ["--seed", "1", "--solutions", ROOT / "solutions" / f"{SET}.ipynb"] if hidden else []
    seconds = _timed([*command, *more], ROOT)
    records = json.loads((folder.with_name(f"{folder.name}-results") / "results.json").read_text("utf-8"))
    return seconds, [record["points"] for record in records]


def by_nbgrader(paths: list[Path], place: Path, packages: Path) -> tuple[float, list[float]]:
    """The same by nbgrader, in a course folder made at `place`."""
    write(source_files(ROOT / "solutions" / f"{SET}.ipynb", place))
    environment = {
        "PATH": f"{packages / 'bin'}:{environment_for_child()['PATH']}",
        "PYTHONPATH": f"{ROOT}:{packages}",
    }
    nbgrader = [sys.executable, "-m", "nbgrader"]
    _timed([*nbgrader, "generate_assignment", SET, "--force", "--create"], place, **environment)
    for path in paths:
        _hand_in(path, place / "release" / SET / f"{SET}.ipynb", place / "submitted" / path.stem / SET / f"{SET}.ipynb")
    seconds = _timed([*nbgrader, "autograde", SET, "--create", "--force"], place, **environment)
    _timed([*nbgrader, "export"], place, **environment)
    rows = (place / "grades.csv").read_text("utf-8").splitlines()
    column = rows[0].split(",").index("score")
    return seconds, [float(row.split(",")[column]) for row in rows[1:]]


def _hand_in(answered: Path, released: Path, path: Path) -> None:
    """The released assignment with the answers of another notebook of the set."""
    whole, answers = (
        read_notebook(released),
        {marker(c): c["source"] for c in read_notebook(answered)["cells"] if marker(c)},
    )
    for cell in whole["cells"]:
        cell["source"] = answers.get(marker(cell), cell["source"])
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(whole), encoding="utf-8")


def _timed(command: list, folder: Path, **environment: str) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment_for_child(**environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return time.perf_counter() - start


def main():
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=30)
    parser.add_argument(
        "--nbgrader", type=Path, metavar="FOLDER", help="where nbgrader and what it needs are installed"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        (folder := Path(place, "class")).mkdir()
        paths = class_of(folder, arguments.size)
        ways = {f"course grade, {what}": partial(by_course, folder, what == "all cases") for what in CASES}
        if arguments.nbgrader:
            ways["nbgrader autograde"] = lambda: by_nbgrader(
                paths, Path(place, "nbgrader"), arguments.nbgrader.absolute()
            )
        for name, way in ways.items():
            seconds, points = way()
            print(
                f"{name}: {seconds / len(paths):.2f} s a submission; points {min(points):g} to {max(points):g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
