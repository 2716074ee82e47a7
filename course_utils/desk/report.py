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
from course_utils.desk.bets import Bet, has_kernel, load_bets
from course_utils.desk.bets_figure import figure_of
from course_utils.desk.ledger import Ledger, Row
from course_utils.errors import CourseError
from course_utils.files import chapters_in, find_place, replacing, require_writable
from course_utils.grading.rendering import printable, render
from course_utils.settings import settings
from course_utils.units import format_counted

_TALLEST = 22  # bets in a figure, which then fits on a page of A4


def write(path: Path | None = None) -> Path:
    """Write the page to `path`, by default `report.html` in the settings' home, say so, and return where it is.

    Raises `CourseError` if nothing can be written there.
    """
    path = Path(path or settings().home / "report.html").absolute()
    entries = load_bets()
    settled = {name: entry for name, entry in entries.items() if entry.truth is not None}
    rows, choices = (Ledger.load() if settings().attended else Ledger.here()).rows, load()
    fair = sum(entry.fair for entry in settled.values())
    summary = (
        f"{format_counted(len(settled), 'settled bet')}, {fair} within a factor of 2; "
        f"{format_counted(len(rows), 'row')} in the ledger; "
        f"choices for {format_counted(len(choices), 'scenario')} of the capstone."
    )
    run_of = attrgetter("chapter", "scale", "device")
    text = render(
        "report.html.j2",
        title="Predicted, measured, explained",
        summary=summary,
        attended=settings().attended,
        figures=list(_draw_pages_of_bets(settled)),
        open_bets=[name for name in entries if name not in settled],
        chapters=[(run, list(part)) for run, part in groupby(sorted(rows, key=run_of), run_of)],
        missing=_chapters_without_anything(settled, rows),
        choices=choices,
        machine=[finding for finding in doctor.essentials(settings()) if finding.mark != "fix"],
    )
    with require_writable(path, "name another file with --out"), replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace", newline="\n")
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
        shown = f"<p>{html.escape(sentence)} Open it in a browser: {link}</p>"
        display({"text/html": shown, "text/plain": f"{sentence} Open {path} in a browser."}, raw=True)
    else:
        print(f"{sentence}\nOpen {path} in a browser.")


def _draw_pages_of_bets(settled: dict[str, Bet]) -> Iterator[tuple[str, str, str]]:
    """The bets in pictures of a page at most, chapters kept together; of each a heading, its address and what is seen."""
    import matplotlib.pyplot as plt

    from course_utils.viz.display import svg_address
    from course_utils.viz.style import STYLE

    parts: list[dict[str, Bet]] = []
    for _, names in groupby(settled, lambda name: name.partition("-")[0]):
        chapter = {name: settled[name] for name in names}
        if not parts or len(parts[-1]) + len(chapter) > _TALLEST:
            parts.append({})
        parts[-1] |= chapter
    for part in parts:
        with plt.rc_context(STYLE):
            figure, alt = figure_of({printable(name): entry for name, entry in part.items()})
            first, last = (name.partition("-")[0] for name in (min(part), max(part)))
            yield f"Chapter {first}" if first == last else f"Chapters {first} to {last}", svg_address(figure), alt


def _chapters_without_anything(settled: Mapping[str, Bet], rows: tuple[Row, ...]) -> list[str]:
    """Numbers of chapters that gave neither a bet nor a row; none where the chapters are not on this machine."""
    try:
        numbers = [path.stem.partition("_")[0] for path in chapters_in(find_place().notebooks)]
    except CourseError:
        return []
    seen = {name.partition("-")[0] for name in settled} | {row.chapter.partition("_")[0] for row in rows}
    return [number for number in numbers if number not in seen]
