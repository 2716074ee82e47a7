"""`course check`, which prints progress or runs the public checks on a notebook."""

import argparse
from datetime import datetime
from pathlib import Path

from course_utils.desk.workspace import find_workspace
from course_utils.errors import CourseError
from course_utils.files import exercises_of, find_place, require_one_name, set_of

HELP = "show your progress, or run the public checks on an exercise notebook as last saved"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "notebook",
        nargs="?",
        help="an exercise (03_adamw, 03 or 3), or the path of a notebook (default: show all progress)",
    )
    parser.add_argument("--set", metavar="NAME", help="the exercise set (default: from the notebook's name)")
    parser.add_argument("--reset", action="store_true", help="reset your progress in this set, or in all; saves a copy")
    parser.add_argument("--yes", action="store_true", help="with --reset: do not ask")


def run(arguments: argparse.Namespace) -> int:
    """Print progress, or what `check(...)` would say of each question; return 1 if an answer is wrong or a reset was declined."""
    if arguments.yes and not arguments.reset:
        raise CourseError("--yes works only with --reset; add --reset or drop --yes.")
    if arguments.reset:
        return _reset(arguments)
    if arguments.notebook is None:
        from course_utils.desk.start import Desk

        try:
            folder = find_workspace(find_place())
        except CourseError:  # the package is installed without the chapters
            folder = Path.cwd()
        print(Desk.load(folder))
        return 0
    return _check(arguments)


def _check(arguments: argparse.Namespace) -> int:
    from course_utils.grading.progress import recall
    from course_utils.grading.terminal import check_notebook

    path = find_notebook(arguments.notebook)
    name = find_set(arguments.set or path.name)
    saved = datetime.fromtimestamp(path.stat().st_mtime)
    print(f"Checking {path.name} as saved on {saved:%Y-%m-%d at %H:%M:%S}; unsaved changes are not included.\n")
    results = []
    for result, text in check_notebook(path, name):
        print(f"{text}\n", flush=True)
        results.append(result)
    right = [result.question for result in results if result.passed]
    total = len(results)
    records = recall(name)
    seen = sum(question in records and records[question].only_seen for question in right)
    after = f", {seen} of them after you saw {'its solution' if seen == 1 else 'their solutions'}" if seen else ""
    print(f"{len(right)} of {total} answers {'is' if len(right) == 1 else 'are'} right{after}.")
    return 0 if len(right) == total else 1


def _reset(arguments: argparse.Namespace) -> int:
    """Ask, put the records of progress aside, and print where they are."""
    from course_utils.grading import my_progress
    from course_utils.grading.progress import PROGRESS

    requested = arguments.set or arguments.notebook
    sets = my_progress().standings
    if requested is not None:
        sets = [progress for progress in sets if progress.name == find_set(requested)]
    passed = [
        f"{progress.name} ({progress.passed} of {progress.questions} passed)" for progress in sets if progress.passed
    ]
    if passed and not arguments.yes:
        try:
            answer = input(f"Reset your progress in {', '.join(passed)}? A copy is saved. [y/N] ")
        except EOFError:
            raise CourseError("No input available; add --yes to reset without being asked.") from None
        if answer.strip().lower() not in ("y", "yes"):
            print("Nothing was reset.")
            return 1
    folder = PROGRESS.forget([progress.name for progress in sets])
    if folder is None:
        print("There was no progress to reset.")
    else:
        print(
            f"Reset: {', '.join(passed) or 'attempts only'}. A copy of everything is in {folder}; to restore it, "
            f"move its file to {folder.parents[1]}."
        )
    return 0


def find_set(name: str) -> str:
    """The exercise set of this `name`, which may be its number, its name or a notebook's path."""
    from course_utils.grading.loading import set_names

    return require_one_name(set_of(name), set_names(), "exercise set")


def find_notebook(name: str) -> Path:
    """The notebook at the path `name`, or else the exercise of that name: the learner's copy, or the checkout's."""
    path = Path(name)
    if path.suffix == ".ipynb" or path.exists():
        if not path.is_file():
            raise CourseError(f"There is no notebook at {path}; check the name.")
        return path
    place = find_place()
    sets = sorted(map(set_of, (place.root / "exercises").glob("*.ipynb")))
    exercise = exercises_of(require_one_name(set_of(name), sets, "exercise"))
    copy = find_workspace(place) / exercise
    return copy if copy.is_file() else place.root / exercise
