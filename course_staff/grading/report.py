"""What a grading leaves behind: a record and a page per student, written as each is finished, then the class's table and summary.

| file | for | holds |
|---|---|---|
| `students/NAME.html` | the student | verdicts on public cases, how many hidden ones passed, the diagnosis |
| `records/NAME.json` | the instructor | everything, hidden cases too; a later run takes it up |
| `results.csv`, `results.json` | the instructor | points by student and question; all records |
| `canvas.csv`, `moodle.csv` | the platform | points in its own export, where one was given |
| `summary.html`, `summary.txt` | the instructor | which question failed how, the commonest mistakes |
| `leaderboard.html`, `leaderboard.csv` | the class | what right answers cost, where a question has figures |
| `letters.json` | the instructor | who is called by which letter there |

`students` may be handed on as it is, and so may the leaderboard where it has no names; nothing else in the folder may.
"""

import csv
import hashlib
import io
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.grading.leaderboard import boards, give_letters
from course_utils.errors import CourseError
from course_utils.files import keep_copies, read_json, replacing
from course_utils.grading.judge import Verdict
from course_utils.grading.pages import printable, render
from course_utils.grading.showing import SIGNS, Line, case_lines
from course_utils.units import format_bytes, format_counted
from course_utils.viz.tradeoff import Board, format_operations, tradeoff_figure

if TYPE_CHECKING:
    from course_staff.grading.gradebook import Gradebook

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MOST = 10
_PAGES = Path(__file__).parent / "pages"
_BOARD = "leaderboard.html", "leaderboard.csv"
RULE = (
    "A question earns its points when all its cases are right, the hidden ones too. "
    "Where it says “in parts”, each right case earns its share."
)
"""How points come about; on every student's page, and in docs/instructors.md."""
_STATES = {
    "passed": "right",
    "untouched": "not written yet",
    "missing": "no answer found",
    "failed": "not right yet",
}
_HIDDEN_KINDS = {
    "values": "gave wrong values",
    "untouched": "not written",
    "missing": "no answer found",
    "foreign": "not your own code",
    "signature": "could not be called",
    "exception": "stopped with an exception",
    "timeout": "took too long",
    "stuck": "waited for what never came",
    "died": "ended the process",
    "unsafe": "gave what cannot be judged",
}


class Results:
    """The folder that a grading writes to. Raises `CourseError` where nothing can be written there."""

    def __init__(self, folder: Path, set_name: str):
        self.folder, self.set_name = folder, set_name
        try:
            for part in ("students", "records"):
                (folder / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CourseError(
                f"{folder} cannot be written ({error.strerror}); name another folder with --out."
            ) from None

    def earlier(self) -> dict[str, dict]:
        """Student to record, of all earlier runs; what cannot be read is left out."""
        records = filter(None, map(_read, sorted((self.folder / "records").glob("*.json"))))
        return {record["student"]: record for record in records}

    def save(self, student: str, record: Mapping) -> dict:
        """Write the record, whole or not at all, and once nothing of it is open the student's page; returns it with the name and
        the set.
        """
        whole = {"student": student, "set": self.set_name, **record}
        _write(self._record(student), _json(whole))
        if not record.get("open"):
            _write(self._page(student), page(whole))
        return whole

    def finish(self, records: list[dict], others: list[str], remarks: Sequence[str] = (), names: bool = False) -> str:
        """Write the class's files; returns the summary as text.

        `others` names files that were left aside; `remarks` say what holds for all these grades; `names` shows on the
        leaderboard who is who.
        """
        records = sorted(records, key=lambda record: record["student"])
        self._keep_if_edited()
        _write(self.folder / "results.csv", table(records))
        _write(self.folder / "results.json", _json(records))
        text = summary(records, self.set_name, others, remarks)
        _write(self.folder / "summary.txt", text)
        _write(self.folder / "summary.html", summary_page(records, self.set_name, others, remarks))
        self._rank(records, names)
        return text

    def _rank(self, records: list[dict], names: bool) -> None:
        """Write the leaderboard, and on each page of a student who is there the letter; or remove one that is no longer true."""
        path = self.folder / "letters.json"
        given = read_json(path, _letters) or {}
        letters = give_letters(records, given)
        found = boards(records, letters)
        if not found:
            for name in _BOARD:
                (self.folder / name).unlink(missing_ok=True)
            return
        if letters != given:
            _write(path, _json(letters))
        ranked = {one.student for board in found for one in board.entries}
        for record in records:
            if (student := record["student"]) in ranked:
                _write(self._page(student), page(record, letters[student]))
        html_name, csv_name = _BOARD
        _write(self.folder / html_name, board_page(found, self.set_name, names))
        _write(self.folder / csv_name, board_table(found, names))

    def fill(self, gradebook: "Gradebook", records: list[dict]) -> list[str]:
        """Write the points into a platform's own file, `canvas.csv` or `moodle.csv`; returns what was left out, as sentences."""
        text, remarks = gradebook.fill(records, self.set_name)
        _write(self.folder / gradebook.file_name, text)
        return [printable(remark) for remark in remarks]

    def _keep_if_edited(self) -> None:
        """Keep a copy of a table that is not the one that the earlier run wrote: somebody may have changed points by hand."""
        written = self.folder / "results.csv"
        try:
            same = written.read_text(encoding="utf-8") == table(
                json.loads((self.folder / "results.json").read_text("utf-8"))
            )
        except (OSError, ValueError, TypeError, LookupError):
            same = False
        if not same and (copies := keep_copies([written], self.folder / "copies")):
            print(f"results.csv was changed since the last run; that file is kept in {copies}.", file=sys.stderr)

    def _page(self, student: str) -> Path:
        return self.folder / "students" / f"{file_name(student)}.html"

    def _record(self, student: str) -> Path:
        return self.folder / "records" / f"{file_name(student)}.json"


def file_name(student: str) -> str:
    """A name for files that every system takes, readable, and never the same for two students."""
    plain = unicodedata.normalize("NFKD", student).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:60]
    return f"{readable or 'student'}-{hashlib.sha256(student.encode('utf-8', 'replace')).hexdigest()[:16]}"


def table(records: list[dict]) -> str:
    """CSV: a row per student with points, of how many, points by question, and notes. No cell is taken for a formula."""
    ids = _ids(records)
    out = io.StringIO()
    writer = csv.writer(
        out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC
    )  # a name may hold `;`, which cuts cells too
    writer.writerow(["student", "points", "of", *ids, "notes"])
    for record in records:
        points = {question["id"]: question["points"] for question in record["questions"]}
        notes = " ".join(record["notes"] + [note for question in record["questions"] for note in question["notes"]])
        row = [record["student"], record["points"], record["of"], *(points.get(name, 0) for name in ids), notes]
        writer.writerow([no_formula(value) for value in row])
    return out.getvalue()


def page(record: Mapping, letter: str = "") -> str:
    """A student's page, with the `letter` on the leaderboard where there is one. Of hidden cases it holds how many passed and how
    the others ended, never an input or a value.
    """
    return _render(
        "student.html.j2",
        title=f"{record['set']}: {record['student']}",
        record=record,
        letter=letter,
        found_any={question["state"] for question in record["questions"]} != {"missing"},
        rule=RULE,
        states=_STATES,
        signs=SIGNS,
        public_lines=_public_lines,
        hidden_fates=_hidden_fates,
    )


def _render(template: str, **values) -> str:
    return render(template, _PAGES, **values)


def summary(records: list[dict], set_name: str, others: list[str], remarks: Sequence[str] = ()) -> str:
    """The class in plain text: points, each question's fates, the commonest named mistakes, what was odd."""
    lines = [_head(records, set_name), *remarks]
    for title, rows in _sections(records, others):
        lines += ["", title, *(f"  {count:4d}  {text}" if count else f"  {text}" for count, text in rows)]
    return "\n".join(map(printable, lines)) + "\n"


def summary_page(records: list[dict], set_name: str, others: list[str], remarks: Sequence[str] = ()) -> str:
    """`summary` for a browser, with every student's points and a link to the page."""
    return _render(
        "summary.html.j2",
        title=f"{set_name}: summary",
        head=_head(records, set_name),
        remarks=remarks,
        records=records,
        ids=_ids(records),
        sections=_sections(records, others),
        file_name=file_name,
    )


def board_page(found: Sequence[Board], set_name: str, names: bool) -> str:
    """The leaderboard for a browser: of each question a picture of the trade-off and a table; with `names` also who is who."""
    import matplotlib.pyplot as plt

    from course_utils.viz.display import svg_address
    from course_utils.viz.style import STYLE

    pictures = {}
    for board in found:
        if board.entries:
            with plt.rc_context(STYLE):
                figure, alt = tradeoff_figure(board)
                pictures[board.id] = svg_address(figure), alt
    return _render(
        "leaderboard.html.j2",
        title=f"{set_name}: leaderboard",
        boards=found,
        pictures=pictures,
        names=names,
        format_bytes=format_bytes,
        format_operations=format_operations,
    )


def board_table(found: Sequence[Board], names: bool) -> str:
    """The leaderboard as CSV: a row per entry, in the page's order, figures as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["question", "entry", *(["student"] if names else []), "front", "bytes", "operations", "accuracy"])
    for board in found:
        for place, one in enumerate(board.entries):
            who = [one.letter, *([one.student] if names else [])]
            on_front = "yes" if place < board.front else "no"
            row = [board.id, *who, on_front, one.bytes, one.operations, one.accuracy]
            writer.writerow([no_formula(value) for value in row])
    return out.getvalue()


def _letters(value) -> dict[str, str]:
    """What `letters.json` holds; raises `ValueError` where two would be called the same, or anything but capitals."""
    if len({*value.values()}) < len(value) or not all(re.fullmatch("[A-Z]{1,4}", letter) for letter in value.values()):
        raise ValueError("a letter belongs to one student")
    return value


def _head(records: list[dict], set_name: str) -> str:
    reached, of = (sum(record[name] for record in records) for name in ("points", "of"))
    share = f", {reached / of:.0%} of all points" if of else ""
    return f"{set_name}: {format_counted(len(records), 'submission')}{share}"


def _sections(records: list[dict], others: list[str]) -> list[tuple[str, list[tuple[int, str]]]]:
    """Titles, each with rows of a count (0 where nothing is counted) and a text; only questions may have no row."""
    sections = [_fates(name, questions) for name, questions in _by_question(records).items()]
    more = {
        "Notes": [(0, f"{record['student']}: {note}") for record in records for note in record["notes"]],
        "The same file, handed in more than once": _copies(records),
        "Left aside, because they are no notebooks": [(0, name) for name in others],
    }
    return [*sections, *_commonest(records), *((title, rows) for title, rows in more.items() if rows)]


def _copies(records: list[dict]) -> list[tuple[int, str]]:
    """Students whose files are the same to the byte."""
    students: dict[str, list[str]] = {}
    for record in records:
        students.setdefault(record["file"], []).append(record["student"])
    return [(0, ", ".join(names)) for names in students.values() if len(names) > 1]


def _ids(records: list[dict]) -> list[str]:
    return list(dict.fromkeys(question["id"] for record in records for question in record["questions"]))


def _by_question(records: list[dict]) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for record in records:
        for question in record["questions"]:
            found.setdefault(question["id"], []).append(question)
    return found


def _fates(name: str, questions: list[dict]) -> tuple[str, list[tuple[int, str]]]:
    """How many passed a question, and how the others ended, the commonest first."""
    fates = Counter(_fate(question) for question in questions)
    passed = fates.pop("passed", 0)
    title = f"{name} · {questions[0]['title']}: {passed} of {len(questions)} passed"
    return title, [(count, fate) for fate, count in fates.most_common()]


def _fate(question: Mapping) -> str:
    if question["state"] != "failed":
        return {"untouched": "not written", "missing": "no answer found"}.get(question["state"], question["state"])
    first = next(verdict for verdict in [*question["public"], *question["hidden"]] if not verdict["passed"])
    only = "" if any(not verdict["passed"] for verdict in question["public"]) else " (hidden cases only)"
    return (question["diagnosis"] or _HIDDEN_KINDS[first["kind"]]) + only


def _commonest(records: list[dict]) -> list[tuple[str, list[tuple[int, str]]]]:
    """The named mistakes of more than one submission, the commonest first, then as the questions stand; the title says what
    is left out. No section where no mistake was named."""
    named = Counter(
        (place, f"{question['id']}: {question['diagnosis']}")
        for record in records
        for place, question in enumerate(record["questions"])
        if question["diagnosis"]
    )
    if not named:
        return []
    shared = sorted(((-count, *mistake) for mistake, count in named.items() if count > 1))
    if not shared:
        return [("Commonest named mistakes", [(0, "Each was made once; they stand with their questions above.")])]
    cut = f", the first {_MOST}" if len(shared) > _MOST else ""
    title = f"Commonest named mistakes: {len(shared)} of {len(named)} were made more than once{cut}"
    return [(title, [(-count, name) for count, _, name in shared[:_MOST]])]


def _public_lines(question: Mapping, words: bool) -> list[Line]:
    """The cases as a check shows them in a notebook, or without an exception's own `words`; of an answer that is right only how
    many there are."""
    count = len(question["public"])
    if question["state"] == "passed" and count > 1:
        return [Line("passed", f"{'Both' if count == 2 else f'All {count}'} public cases are right.")]
    if question["state"] == "missing" and question["notes"]:
        return []
    return case_lines(
        [
            Verdict(v["case"], v["passed"], v["sentence" if words else "brief"], kind=v["kind"])
            for v in question["public"]
        ]
    )


def _hidden_fates(question: Mapping) -> list[tuple[str, int]]:
    failed = Counter(_HIDDEN_KINDS[verdict["kind"]] for verdict in question["hidden"] if not verdict["passed"])
    return sorted(failed.items())


def no_formula(value):
    """The value of a cell; a text that begins like a formula, which a spreadsheet would run, behind an apostrophe."""
    if isinstance(value, str):
        value = printable(value)
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value


def _json(value) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


_NO_RECORD = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)


def _read(path: Path) -> dict | None:
    """A record that the class's files can be made of; whatever else lies there, as of another version of the course, is none."""
    try:
        record = json.loads(path.read_text("utf-8"))
        table([record])
        summary([record], record["set"], [])
        {file_name(record["student"]), record["key"], record["file"], record["seed"]}
    except _NO_RECORD:
        return None
    return record


def _write(path: Path, text: str) -> None:
    try:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise CourseError(
            f"{path} cannot be written ({error.strerror}); make room, then run the same command again."
        ) from None
