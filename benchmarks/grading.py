"""Seconds per submission of `course grade` on a class of honest AdamW notebooks, beside nbgrader's autograde on the same class.

nbgrader is not among the course's packages: name a folder that `pip install --target FOLDER nbgrader` has filled. Each of its
test cells is the notebook's own `check(...)`, raising where it fails (`COURSE_STRICT=1`): it judges the public cases only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from course_staff.grading.source import load_solutions, marker
from course_staff.notebooks.files import read_notebook
from course_utils.grading.released import load_set
from course_utils.settings import environment_for_child

ROOT = Path(__file__).parents[1]
SET = "03_adamw"


def class_of(folder: Path, size: int) -> list[Path]:
    """`size` notebooks with right answers, the styles of the set's variants in turn."""
    authored = {each.question.id: each for each in load_solutions(ROOT / "solutions" / f"{SET}.ipynb")}
    paths = []
    for number in range(size):
        notebook = read_notebook(ROOT / "exercises" / f"{SET}.ipynb")
        for cell in notebook["cells"]:
            if mark := marker(cell):
                each = authored[mark[1]]
                styles = [each.solution, *(variant.source for variant in each.question.variants)]
                answer = styles[number % len(styles)]
                cell["source"] = answer if answer.startswith("# EXERCISE") else f"# EXERCISE {mark[1]}\n{answer}"
        paths.append(folder / f"student{number:02d}.ipynb")
        paths[-1].write_text(json.dumps(notebook), encoding="utf-8")
    return paths


def by_course(folder: Path) -> tuple[float, list[float]]:
    """Seconds for the whole class, and everybody's points."""
    command = [sys.executable, "-m", "course_utils.cli", "grade", folder, "--set", SET, "--seed", "1", "--again"]
    seconds = _timed([*command, "--solutions", ROOT / "solutions" / f"{SET}.ipynb"], ROOT)
    records = json.loads((folder.with_name(f"{folder.name}-results") / "results.json").read_text("utf-8"))
    return seconds, [record["points"] for record in records]


def by_nbgrader(paths: list[Path], place: Path, packages: Path) -> tuple[float, list[float]]:
    """The same by nbgrader, in a course folder made at `place`."""
    points = {entry["id"]: entry["points"] for entry in load_set(SET)["questions"]}
    _assignment(ROOT / "exercises" / f"{SET}.ipynb", place / "source" / SET / f"{SET}.ipynb", points)
    for path in paths:
        _assignment(path, place / "submitted" / path.stem / SET / f"{SET}.ipynb", points)
    environment = {
        "PATH": f"{packages / 'bin'}:{environment_for_child()['PATH']}",
        "PYTHONPATH": f"{ROOT}:{packages}",
        "COURSE_STRICT": "1",
        "OMP_NUM_THREADS": "1",
        "COURSE_SCALE": "smoke",
    }
    nbgrader = [sys.executable, "-m", "nbgrader"]
    _timed([*nbgrader, "generate_assignment", SET, "--force", "--create"], place, **environment)
    seconds = _timed([*nbgrader, "autograde", SET, "--create", "--force"], place, **environment)
    _timed([*nbgrader, "export"], place, **environment)
    rows = (place / "grades.csv").read_text("utf-8").splitlines()
    column = rows[0].split(",").index("score")
    return seconds, [float(row.split(",")[column]) for row in rows[1:]]


def _assignment(notebook: Path, path: Path, points: dict[str, int]) -> None:
    """The notebook with nbgrader's metadata: each answer a solution, the check below it the test."""
    whole = read_notebook(notebook)
    asked = None
    for number, cell in enumerate(whole["cells"]):
        mark, common = marker(cell), {"schema_version": 3, "locked": False, "task": False}
        if mark:
            asked = mark[1]
            cell["metadata"]["nbgrader"] = {**common, "grade": False, "grade_id": f"answer-{asked}", "solution": True}
        elif asked and cell["cell_type"] == "code" and f'check("{asked}")' in cell["source"]:
            test = {
                "grade": True,
                "grade_id": f"test-{asked}",
                "solution": False,
                "points": points[asked],
                "locked": True,
            }
            cell["metadata"]["nbgrader"] = {**common, **test}
            asked = None
        cell.setdefault("id", f"cell-{number}")
    whole["metadata"]["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
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
        ways = {"course grade": lambda: by_course(folder)}
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
