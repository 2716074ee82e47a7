"""`course grade`."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.commands import cores, seconds
from course_utils.errors import CourseError
from course_utils.units import format_counted

if TYPE_CHECKING:
    from course_staff.grading.by_hand import Corrections
    from course_staff.grading.gradebook import Gradebook
    from course_staff.grading.prepare import PreparedSet
    from course_staff.grading.record import Grade, Record
    from course_staff.grading.results import Results
    from course_staff.grading.worklist import Worklist

PUBLIC_ONLY = "Without --seed only public cases are run, which learners know; choose a private number."
HELP = "grade a folder of notebooks in a sandbox; write a table, a page per student and a class summary"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is graded, by which set and seed, where the results go, and the limits."""
    add = parser.add_argument
    add("folder", type=Path, help="the folder with the submissions, or one notebook")
    add("--set", required=True, metavar="NAME", help="the exercise set: 03_adamw, 03 or 3")
    add("--seed", type=int, metavar="N", help="your private number, from which hidden cases are drawn")
    add("--solutions", type=Path, metavar="PATH", help="the set's notebook in solutions/ (default: found)")
    add("--out", type=Path, metavar="FOLDER", help="the results folder (default: next to the submissions)")
    add("--gradebook", type=Path, metavar="CSV", help="a Canvas or Moodle export, to fill in with the points")
    add("--jobs", type=_jobs, default=cores(), metavar="N", help="how many at a time (default: one per core)")
    add("--seconds", type=seconds, default=20.0, metavar="S", help="time limit per case (default: 20)")
    add("--again", action="store_true", help="regrade what an earlier run graded")
    add("--only", metavar="STUDENT", help="regrade only this one, named as in the results")
    add("--trust", action="store_true", help="grade without a sandbox if there is none: only for authors you trust")


def run(arguments: argparse.Namespace) -> int:
    """Grade what is not graded yet; returns 1 if the grader itself failed on a submission, or nobody is in the gradebook."""
    from course_staff.grading.by_hand import correct

    plan = _plan(arguments)
    try:
        records = [*plan.worklist.saved, *_grade(plan, arguments.jobs)]
    except KeyboardInterrupt:
        folder = plan.results.folder
        print(f"\nFinished grades are saved in {folder}; the same command resumes from there.", file=sys.stderr)
        raise
    records, ungraded = correct(records, plan.corrections)
    return _write_results(plan, records, [*plan.remarks, *ungraded])


@dataclass(frozen=True)
class GradingPlan:
    """What a run of the command is to do."""

    exercise_set: "PreparedSet"
    sandbox_kind: str
    results: "Results"
    worklist: "Worklist"
    corrections: "Corrections"
    gradebook: "Gradebook | None"
    private: list[Path]  # what no submission may see
    other_files: list[str]  # beside the submissions
    remarks: list[str]  # on all grades


def _plan(arguments: argparse.Namespace) -> GradingPlan:
    """Read and check all that could be wrong, which should not turn up after hours of grading."""
    from course_staff.grading.gradebook import read_gradebook
    from course_staff.grading.prepare import prepare
    from course_staff.grading.results import Results, title_of
    from course_staff.grading.sandbox import SAFE, UNSAFE, best_kind
    from course_staff.grading.worklist import find_submissions, list_other_files
    from course_utils.files import require_one_name
    from course_utils.grading.loading import set_names

    name = require_one_name(arguments.set, set_names(), "exercise set")
    gradebook = arguments.gradebook and read_gradebook(arguments.gradebook)
    folder = arguments.folder.resolve()
    out = _results_folder(folder, arguments.out)
    submissions = find_submissions(folder, out if out.is_relative_to(folder) else None)
    print(f"{format_counted(len(submissions), 'submission')} to {name}.", file=sys.stderr, flush=True)
    sandbox_kind = best_kind(arguments.trust)
    solutions = None if arguments.seed is None else arguments.solutions or _find_solutions(name)
    exercise_set = prepare(name, solutions, arguments.seed, arguments.seconds)
    remarks = [] if sandbox_kind in SAFE else [UNSAFE]
    remarks += [] if exercise_set.seed is not None else [PUBLIC_ONLY]
    for remark in remarks:
        print(remark, file=sys.stderr)
    results = Results(out, name, title_of(name, solutions))
    worklist, corrections = _find_work(arguments, submissions, exercise_set, sandbox_kind, results)
    private = [folder if folder.is_dir() else folder.parent, out, *([solutions.parent] if solutions else [])]
    others = list_other_files(folder, set(submissions.values()), out)
    return GradingPlan(exercise_set, sandbox_kind, results, worklist, corrections, gradebook, private, others, remarks)


def _find_work(
    arguments: argparse.Namespace,
    submissions: dict[str, Path],
    exercise_set: "PreparedSet",
    sandbox_kind: str,
    results: "Results",
) -> tuple["Worklist", "Corrections"]:
    """What is to be graded beside the earlier results, and what the instructor wrote by hand."""
    from course_staff.grading.by_hand import FILE, read_by_hand
    from course_staff.grading.worklist import check_place, identify, list_work

    files = {student: identify(path, exercise_set, sandbox_kind) for student, path in submissions.items()}
    earlier = results.earlier()
    if arguments.folder.is_file() and not (arguments.again or arguments.only):
        check_place(*next(iter(files.items())), earlier)
    worth = {prepared.question.id: prepared.question.points for prepared in exercise_set.questions}
    corrections = read_by_hand(results.folder / FILE, [*{**earlier, **files}], worth)
    worklist = list_work(files, earlier, exercise_set.seed, arguments.only, arguments.again)
    sys.stderr.writelines(f"{line}\n" for line in worklist.in_words(files, exercise_set.name, results.folder))
    return worklist, corrections


def _results_folder(folder: Path, out: Path | None) -> Path:
    stem = folder.stem if folder.is_file() else folder.name  # only a notebook's name has an ending that can be dropped
    out = (out or folder.with_name(f"{stem}-results")).resolve()
    if out == folder:
        raise CourseError("The results cannot go among the submissions; name another folder with --out.")
    return out


def _find_solutions(name: str) -> Path:
    from course_utils.files import find_place

    path = find_place().root / "solutions" / f"{name}.ipynb"
    if not path.is_file():
        raise CourseError(f"There are no solutions at {path}; name them with --solutions.")
    return path


def _grade(plan: GradingPlan, jobs: int) -> list["Record"]:
    """The records of what is to be graded, each written as soon as it is there."""
    from tqdm import tqdm

    from course_staff.grading.grade import grade_all

    todo, exercise_set = plan.worklist.todo, plan.exercise_set
    records = []
    with tqdm(total=len(todo), unit="notebook", desc=exercise_set.name, file=sys.stderr, disable=not todo) as bar:

        def save(student: str, grade: "Grade") -> None:
            file = todo[student]
            identity = {"key": file.key, "file": file.digest, "seed": exercise_set.seed}
            records.append(plan.results.save(student, {**grade, **identity}))
            bar.update()

        if todo:
            paths = {student: file.path for student, file in todo.items()}
            grade_all(paths, exercise_set, plan.sandbox_kind, jobs, save, plan.private)
    return records


def _write_results(plan: GradingPlan, records: list["Record"], remarks: list[str]) -> int:
    """Write the class's files, and print the summary and what became of the gradebook; returns the exit code."""
    from course_staff.grading.gradebook import FILE_NAMES

    results, gradebook = plan.results, plan.gradebook
    print(results.finish(records, plan.other_files, remarks), end="")
    sentences, is_filled = results.fill(gradebook, records) if gradebook else ([], True)
    new_file = gradebook.file_name if gradebook and is_filled else None
    hint = "" if gradebook else "; use --gradebook to update it"
    older = [file_name for file_name in FILE_NAMES if file_name != new_file and (results.folder / file_name).exists()]
    sentences += [f"{file_name} is from an earlier run{hint}." for file_name in older]
    print(*(["", *sentences] if sentences else []), f"\nResults are in {results.folder}.", sep="\n")
    return 1 if not is_filled or any(record.get("failed") for record in records) else 0


def _jobs(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a count; give a whole number from 1 on")
    return int(text)
