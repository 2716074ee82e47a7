"""`course grade`."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.commands import cores, seconds
from course_utils.errors import CourseError
from course_utils.units import format_counted

if TYPE_CHECKING:
    from course_staff.grading.by_hand import Mark
    from course_staff.grading.gradebook import Gradebook
    from course_staff.grading.prepare import PreparedSet
    from course_staff.grading.record import Record
    from course_staff.grading.report import Results
    from course_staff.grading.submitted import Worklist

PUBLIC_ONLY = "Without --seed only public cases are run, which learners know; choose a private number."
HELP = "grade a folder of notebooks in a sandbox; write a table, a page per student and a class summary"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is graded, by which set and seed, where the results go, and the limits."""
    parser.add_argument("folder", type=Path, help="the folder with the submissions, or one notebook")
    parser.add_argument("--set", required=True, metavar="NAME", help="the exercise set: 03_adamw, 03 or 3")
    parser.add_argument("--seed", type=int, metavar="N", help="your private number, from which hidden cases are drawn")
    parser.add_argument(
        "--solutions", type=Path, metavar="PATH", help="the set's notebook in solutions/ (default: found)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="the results folder (default: next to the submissions)"
    )
    parser.add_argument(
        "--gradebook", type=Path, metavar="CSV", help="a Canvas or Moodle export, to fill in with the points"
    )
    parser.add_argument(
        "--jobs", type=_jobs, default=cores(), metavar="N", help="how many at a time (default: one per core)"
    )
    parser.add_argument("--seconds", type=seconds, default=20.0, metavar="S", help="time limit per case (default: 20)")
    parser.add_argument("--again", action="store_true", help="regrade what an earlier run graded")
    parser.add_argument("--only", metavar="STUDENT", help="regrade only this one, named as in the results")
    parser.add_argument(
        "--trust", action="store_true", help="grade without a sandbox if there is none: only for authors you trust"
    )


def run(arguments: argparse.Namespace) -> int:
    """Grade what is not graded yet; 1 where the grader itself failed on a submission, or nobody is in the gradebook."""
    from course_staff.grading.by_hand import FILE, read_by_hand
    from course_staff.grading.gradebook import read_gradebook
    from course_staff.grading.prepare import prepare
    from course_staff.grading.report import Results
    from course_staff.grading.sandbox import SAFE, UNSAFE, best_kind
    from course_staff.grading.submitted import check_place, check_set, find_submissions, identify, list_work
    from course_utils.files import require_one_name
    from course_utils.grading.loading import set_names

    name = require_one_name(arguments.set, set_names(), "exercise set")
    gradebook = arguments.gradebook and read_gradebook(arguments.gradebook)  # before hours of grading
    folder = arguments.folder.resolve()
    stem = folder.stem if folder.is_file() else folder.name  # only a notebook's name has an ending that can be dropped
    out = (arguments.out or folder.with_name(f"{stem}-results")).resolve()
    if out == folder:
        raise CourseError("The results cannot go among the submissions; name another folder with --out.")
    paths = find_submissions(folder, out if out.is_relative_to(folder) else None)
    print(f"{format_counted(len(paths), 'submission')} to {name}.", file=sys.stderr, flush=True)
    sandbox_kind = best_kind(arguments.trust)
    solutions = None if arguments.seed is None else arguments.solutions or _find_solutions(name)
    prepared = prepare(name, solutions, arguments.seed, arguments.seconds)
    remarks = [] if sandbox_kind in SAFE else [UNSAFE]
    remarks += [] if prepared.seed is not None else [PUBLIC_ONLY]
    for remark in remarks:
        print(remark, file=sys.stderr)

    results = Results(out, name, _title(name, solutions))
    submitted = {student: identify(path, prepared, sandbox_kind) for student, path in paths.items()}
    earlier = results.earlier()
    check_set(earlier, name, out)
    if folder.is_file() and not (arguments.again or arguments.only):
        check_place(*next(iter(submitted.items())), earlier)
    worth = {exercise.question.id: exercise.question.points for exercise in prepared.questions}
    marks = read_by_hand(out / FILE, [*{**earlier, **submitted}], worth)  # before hours of grading, too
    worklist = list_work(submitted, earlier, prepared.seed, arguments.only, arguments.again)
    _announce_work(worklist, submitted, out, name)
    try:
        out.mkdir(parents=True, exist_ok=True)  # what is not there yet cannot be covered
        private = [folder if folder.is_dir() else folder.parent, out, *([solutions.parent] if solutions else [])]
        records = [*worklist.saved, *_grade(worklist, prepared, sandbox_kind, results, arguments.jobs, private)]
    except KeyboardInterrupt:
        print(f"\nFinished grades are saved in {out}; the same command resumes from there.", file=sys.stderr)
        raise
    others = _other_files(folder, set(paths.values()), out)
    return _write_results(results, records, marks, others, remarks, gradebook)


def _write_results(
    results: "Results",
    records: list["Record"],
    marks: Mapping[tuple[str, str], "Mark"],
    others: list[str],
    remarks: list[str],
    gradebook: "Gradebook | None",
) -> int:
    """Write tables, pages and the gradebook, with the `marks` by hand, and print the summary; returns the exit code."""
    from course_staff.grading.by_hand import FILE, with_points_by_hand
    from course_staff.grading.gradebook import FILE_NAMES

    records = [with_points_by_hand(record, marks) for record in records]
    graded = {(record["student"], question["id"]) for record in records for question in record["questions"]}
    ungraded = [
        f"{FILE}: {question} of {student} has no grade to replace; regrade this one with --only."
        for student, question in marks
        if (student, question) not in graded
    ]
    print(results.finish(records, others, [*remarks, *ungraded]), end="")
    sentences, filled = results.fill(gradebook, records) if gradebook else ([], True)
    written = gradebook.file_name if gradebook and filled else None
    for older in (name for name in FILE_NAMES if name != written and (results.folder / name).exists()):
        more = "" if gradebook else "; use --gradebook to update it"
        sentences.append(f"{older} is from an earlier run{more}.")
    print(*(["", *sentences] if sentences else []), f"\nResults are in {results.folder}.", sep="\n")
    return 1 if not filled or any(record.get("failed") for record in records) else 0


def _find_solutions(name: str) -> Path:
    from course_utils.files import find_place

    path = find_place().root / "solutions" / f"{name}.ipynb"
    if not path.is_file():
        raise CourseError(f"There are no solutions at {path}; name them with --solutions.")
    return path


def _title(name: str, solutions: Path | None) -> str:
    """What the set's notebook is called in its first line; the set's name where there is no notebook."""
    from course_staff.notebooks.files import read_notebook
    from course_utils.files import exercises_of, find_place

    try:
        path = solutions or find_place().root / exercises_of(name)
    except CourseError:  # only the package is installed
        return name
    if not path.is_file():
        return name
    texts = (cell["source"] for cell in read_notebook(path).cells if cell["cell_type"] == "markdown")
    first = next(texts, "").partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else name


def _announce_work(worklist: "Worklist", submitted: Mapping, folder: Path, name: str) -> None:
    """A line on stderr for whatever of the submissions or of the results is left as it is, or graded again unasked."""
    saved = [record["student"] for record in worklist.saved]
    before = [student for student in saved if student in submitted and student not in worklist.waiting]
    elsewhere = [student for student in saved if student not in submitted]
    lines = []
    if before:
        lines.append(f"{len(before)} of {len(submitted)} were graded before; --again regrades them.")
    if worklist.outdated:
        count = f"{len(worklist.outdated)} of {len(submitted)}"
        lines.append(f"Grading again {count}, because {name} or its grading changed.")
    if worklist.waiting:
        lines.append(f"New or changed, but left for a run without --only: {', '.join(worklist.waiting)}.")
    if elsewhere:
        count = format_counted(len(elsewhere), "earlier grade")
        where = f"to remove one, delete its file in {folder / 'records'}"
        lines.append(f"The table includes {count} without a submission here; {where}.")
    sys.stderr.writelines(f"{line}\n" for line in lines)


def _grade(
    worklist: "Worklist",
    prepared: "PreparedSet",
    sandbox_kind: str,
    results: "Results",
    jobs: int,
    private: list[Path],
) -> list["Record"]:
    """The records of what is to be graded, each written as soon as it is there."""
    from tqdm import tqdm

    from course_staff.grading.grade import grade_all

    todo, records = worklist.todo, []
    with tqdm(total=len(todo), unit="notebook", desc=prepared.name, file=sys.stderr, disable=not todo) as bar:

        def done(student: str, record: "Record") -> None:
            file = todo[student]
            identity = {"key": file.key, "file": file.digest, "seed": prepared.seed}
            records.append(results.save(student, {**record, **identity}))
            bar.update()

        if todo:
            paths = {student: file.path for student, file in todo.items()}
            grade_all(paths, prepared, sandbox_kind, jobs, done, private)
    return records


def _other_files(folder: Path, notebooks: set[Path], out: Path) -> list[str]:
    """Files beside the notebooks, such as a script submitted by mistake."""
    from course_staff.grading.submitted import is_of_the_system

    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path not in notebooks]
    names = [path.relative_to(folder) for path in paths if not path.is_relative_to(out)]
    return [name.as_posix() for name in names if not (name.name.startswith(".") or is_of_the_system(name))]


def _jobs(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a count; give a whole number from 1 on")
    return int(text)
