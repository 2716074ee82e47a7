"""`course release`."""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.commands import cores
from course_utils.files import chapters_in, find_place, keep_copies
from course_utils.units import format_counted

if TYPE_CHECKING:
    from course_staff.release.cache import Part
    from course_staff.release.stamps import Stamps

HELP = "generate the exercises and their checks from the solutions"
_SECONDS = 5.0  # of one core for a question, its known mistakes and variants included


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which sets, whether to write, and for whom."""
    parser.add_argument("sets", nargs="*", help="sets in solutions/: 03_adamw, 03 or 3; by default all")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a generated file differs")
    parser.add_argument(
        "--nbgrader", type=Path, metavar="FOLDER", help="write nbgrader source assignments into this folder instead"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write what differs, keep a copy of the old file, and name both; with `--check`, only return 1 if something differs."""
    from course_staff.release.nbgrader import source_files
    from course_staff.release.release import file_names, find_differing
    from course_staff.release.stamps import Stamps

    root = find_place().root
    folder = arguments.nbgrader.resolve() if arguments.nbgrader else root
    paths = chapters_in(root / "solutions", arguments.sets)
    stamps = Stamps(root / "solutions" / "released.json")
    folders = root / "exercises", root / "course_utils" / "grading" / "sets"
    if arguments.nbgrader:
        todo = paths
        releases = (source_files(path, folder) for path in paths)
    else:
        todo = [path for path in paths if not stamps.are_current(path, file_names(path, *folders))]
        releases = _release_sets(todo, *folders, stamps)
    differing = []
    for path, texts in zip(todo, releases, strict=True):
        files = find_differing(texts)
        differing += files
        if arguments.check:
            for file in files:
                print(f"{file.relative_to(folder).as_posix()} {_what_to_do(file, path.stem)}")
        else:
            _renew_and_report(files, texts, folder)
            if not arguments.nbgrader:
                stamps.put(path, texts)
    counts = format_counted(len(paths), "set"), format_counted(len(differing), "file")
    print(("{} checked, {} differing." if arguments.check else "{} released, {} changed.").format(*counts))
    return 1 if arguments.check and differing else 0


def _renew_and_report(files: list[Path], texts: Mapping[Path, str], folder: Path) -> None:
    """Write the `files` that differ and keep copies: somebody may have changed an exercise by hand, or answered it there."""
    from course_staff.release.release import renew
    from course_utils.settings import settings

    copies = keep_copies([file for file in files if file.suffix == ".ipynb"], settings().home / "copies")
    for file in files:
        note = f"; old copy in {copies}" if copies and file.suffix == ".ipynb" else ""
        print(f"{file.relative_to(folder).as_posix()}: written{note}")
    renew({file: texts[file] for file in files})


def _release_sets(paths: list[Path], exercises: Path, sets: Path, stamps: "Stamps") -> list[dict[Path, str]]:
    """The files of each set; on stderr what is run and why, and a bar while it is."""
    from tqdm import tqdm

    from course_staff.release.cache import ReleaseCache
    from course_staff.release.release_sets import release_sets
    from course_utils.settings import settings

    releases = ReleaseCache(settings().home / "released")
    if parts := releases.find_unreleased(paths):
        reasons = Counter(stamps.reason(path) for path in dict.fromkeys(path for path, _ in parts))
        print(_announce(len(parts), cores(), reasons), file=sys.stderr)
    with tqdm(total=len(parts), desc="questions", file=sys.stderr, delay=1) as bar:

        def advance(part: "Part") -> None:
            bar.set_postfix_str(f"{part[0].stem} {part[1] or ''}".rstrip(), refresh=False)
            bar.update(bool(part[1]))

        return list(release_sets(paths, exercises, sets, releases, cores(), advance))


def _announce(questions: int, jobs: int, set_counts: Mapping[str, int]) -> str:
    """What a release is about to do, how long that takes, and each reason with its number of sets."""
    minutes = max(1, round(questions * _SECONDS / jobs / 60))
    duration = f"about {format_counted(minutes, 'minute')} on {format_counted(jobs, 'core')}"
    reasons = "; ".join(f"{reason} ({format_counted(count, 'set')})" for reason, count in set_counts.items())
    return f"{format_counted(questions, 'question')} to run, {duration}. Reasons: {reasons}."


def _what_to_do(file: Path, name: str) -> str:
    """What a file that differs may be, and what to do about it."""
    if not file.exists():
        return f"is missing: `course release {name}` writes it."
    if file.suffix == ".ipynb":
        return (
            "differs: it was edited or answered, or its solutions changed; "
            f"`course release {name}` rewrites it and saves a copy of this one."
        )
    return f"differs: the solutions or the course's code changed; `course release {name}` rewrites it."
