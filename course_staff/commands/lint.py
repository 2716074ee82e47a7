"""`course lint`."""

import argparse
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import Place, chapters_in, find_place
from course_utils.units import format_counted

HELP = "check notebooks, demos, links, the share of hand-written code shown, and the names in the code"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The chapters to check."""
    parser.add_argument("chapters", nargs="*", help="chapters (03_adamw, 03 or 3), or paths; by default all")
    parser.add_argument(
        "--notes",
        action="store_true",
        help="also list claims without evidence, and how much of each hand-written file is shown",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line per violation; returns 1 if there is any. Notes are only counted.

    Without a chapter's name the links of all documents are followed too, the code's names are read, and the lines by hand that
    are shown are counted.
    """
    place = find_place()
    paths = chapters_in(place.notebooks, arguments.chapters)
    violations, remarks = _check_chapters(place, paths)
    if arguments.notes:
        print(*remarks, sep="\n")
    violations += _check_demos(place, [path.stem for path in paths])
    if not arguments.chapters:
        violations += _check_documents_and_code(place, arguments.notes)
    hint = f" {format_counted(len(remarks), 'note')} (`--notes` lists them)."
    counts = f"{format_counted(len(paths), 'chapter')} checked, {format_counted(len(violations), 'violation')}."
    print(*violations, counts + (hint if remarks and not arguments.notes else ""), sep="\n")
    return 1 if violations else 0


def _check_chapters(place: Place, paths: list[Path]) -> tuple[list[str], list[str]]:
    """What is wrong in the notebooks, and notes on them."""
    from course_staff.notebooks.anatomy import Chapter, Violation, violations_in
    from course_staff.notebooks.files import read_notebook
    from course_staff.notebooks.sentences import broken_claims, claims_of, notes

    violations = [str(violation) for path in paths for violation in violations_in(path)]
    remarks = []
    for path in paths:
        chapter = Chapter(path, read_notebook(path))
        claims = claims_of(place.root, path.stem)
        violations += [str(Violation(path.name, *remark)) for remark in broken_claims(chapter, claims)]
        remarks += [str(Violation(path.name, *remark)) for remark in notes(chapter, claims)]
    return violations, remarks


def _check_demos(place: Place, stems: list[str]) -> list[str]:
    from course_staff.demos import demos_in, read_demo
    from course_staff.demos.needs import cells_by_step

    violations = []
    for demo in (demo for demo in demos_in(place.notebooks) if demo.stem in stems):
        try:
            list(cells_by_step(read_demo(demo)))
        except CourseError as error:
            violations.append(str(error))
    return violations


def _check_documents_and_code(place: Place, with_counts: bool) -> list[str]:
    """Vague names, dead links, and too little shown of the code by hand; the shares are printed."""
    from course_staff.documents.naming import vague_names
    from course_staff.notebooks.anatomy import Violation
    from course_staff.notebooks.links import dead_links, documents_in, prose
    from course_staff.notebooks.shown import SHOWN_AT_LEAST, share, shown_lines

    violations = list(vague_names(place.root))
    for path in documents_in(place.root):
        for number, text in prose(path):
            violations += [str(Violation(path.name, number, remark)) for remark in dead_links(path, text)]
    if not (lines := shown_lines(place.root)):
        return violations
    for name, (shown_count, total) in lines.items() if with_counts else ():
        print(f"{name:36} {shown_count:4} of {total:4} lines shown")
    print(f"The chapters show {share(lines):.1%} of the code by hand; at least {SHOWN_AT_LEAST:.0%} is required.")
    if share(lines) < SHOWN_AT_LEAST:
        violations.append("Too little of the code by hand is shown.")
    return violations
