"""The learner's own page: bets beside the truth, the ledger, the capstone's choices, and the machine with its versions.

It is one file that loads nothing, opens from disk and prints on A4. It names no person, no host and no folder. Unattended
(`COURSE_READER=0`) it holds what this process did.
"""

import html
import os
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from course_utils.capstone.kept import load
from course_utils.desk import doctor
from course_utils.desk.bets import Bet, chapter_number, has_kernel, load_bets
from course_utils.desk.bets_figure import figure_of
from course_utils.desk.ledger import Ledger, Row
from course_utils.errors import CourseError
from course_utils.files import chapters_in, find_place, require_writable, write_text
from course_utils.grading.rendering import printable, render
from course_utils.settings import settings
from course_utils.units import format_counted

_MOST_BETS = 22  # bets in a figure, which then fits on a page of A4


def write(path: Path | None = None) -> Path:
    """Write the page to `path`, by default `report.html` in the settings' home, say so, and return where it is.

    Raises `CourseError` if nothing can be written there.
    """
    path = Path(path or settings().home / "report.html").absolute()
    bets = load_bets()
    settled_bets = {name: bet for name, bet in bets.items() if bet.truth is not None}
    rows = (Ledger.load() if settings().attended else Ledger.of_this_process()).rows
    choices = load()
    fair = sum(bet.fair for bet in settled_bets.values())
    summary = (
        f"{format_counted(len(settled_bets), 'settled bet')}, {fair} within a factor of 2; "
        f"{format_counted(len(rows), 'row')} in the ledger; "
        f"choices for {format_counted(len(choices), 'scenario')} of the capstone."
    )
    run_of = attrgetter("chapter", "scale", "device")
    text = render(
        "report.html.j2",
        title="Predicted, measured, explained",
        summary=summary,
        attended=settings().attended,
        figures=list(_draw_pages_of_bets(settled_bets)),
        open_bets=[name for name in bets if name not in settled_bets],
        chapters=[(run, list(part)) for run, part in groupby(sorted(rows, key=run_of), run_of)],
        missing=_chapters_without_anything(settled_bets, rows),
        choices=choices,
        machine=[finding for finding in doctor.essentials(settings()) if finding.level != "fix"],
    )
    with require_writable(path, "name another file with --out"):
        write_text(path, text, errors="replace")
    _announce(path, summary)
    return path


def _announce(path: Path, summary: str) -> None:
    """The summary with a link to the page; without a path if unattended, so that equal runs say the same."""
    sentence = f"Your report: {summary}"
    if not settings().attended:
        print(f"{sentence} It is in {path.name}.")
    elif has_kernel():
        from IPython.display import display

        link = f"<a href='{html.escape(path.as_uri())}'>{html.escape(os.fspath(path))}</a>"
        page = f"<p>{html.escape(sentence)} Open it in a browser: {link}</p>"
        display({"text/html": page, "text/plain": f"{sentence} Open {path} in a browser."}, raw=True)
    else:
        print(f"{sentence}\nOpen {path} in a browser.")


def _draw_pages_of_bets(bets: dict[str, Bet]) -> Iterator[tuple[str, str, str]]:
    """The heading, address and alternative text of figures of the bets, each of a page at most, with chapters kept together."""
    import matplotlib.pyplot as plt

    from course_utils.viz.display import svg_address
    from course_utils.viz.style import STYLE

    parts: list[dict[str, Bet]] = []
    for _, names in groupby(bets, chapter_number):
        chapter = {name: bets[name] for name in names}
        if not parts or len(parts[-1]) + len(chapter) > _MOST_BETS:
            parts.append({})
        parts[-1] |= chapter
    for part in parts:
        with plt.rc_context(STYLE):
            figure, alt = figure_of({printable(name): bet for name, bet in part.items()})
            first, last = map(chapter_number, (min(part), max(part)))
            yield f"Chapter {first}" if first == last else f"Chapters {first} to {last}", svg_address(figure), alt


def _chapters_without_anything(bets: Mapping[str, Bet], rows: tuple[Row, ...]) -> list[str]:
    """The numbers of chapters without a bet and a row; none if the chapters are not on this machine."""
    try:
        numbers = [chapter_number(path.stem) for path in chapters_in(find_place().notebooks)]
    except CourseError:
        return []
    nonempty = {chapter_number(name) for name in (*bets, *(row.chapter for row in rows))}
    return [number for number in numbers if number not in nonempty]
