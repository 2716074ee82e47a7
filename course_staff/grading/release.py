"""From `solutions/NN_topic.ipynb` to what learners get: a notebook with holes, and a set that checks without the answers."""

import hashlib
import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from course_staff.grading.source import Authored, load_solutions, marker, mistaken, read_cells, read_plain
from course_staff.grading.zoo import Trial
from course_utils.errors import CourseError
from course_utils.files import replacing
from course_utils.grading.prints import _away
from course_utils.grading.question import Question
from course_utils.grading.released import SETS
from course_utils.units import format_counted

LEVELS = {1: "easy", 2: "medium", 3: "hard"}
_KEPT_METADATA = ("tags", "slideshow")


@dataclass(frozen=True)
class Released:
    """What one solutions notebook comes to: two files and their texts."""

    notebook: Path
    notebook_text: str
    set: Path
    set_text: str

    def differing(self) -> list[Path]:
        """Those of the two files that do not hold their text, missing ones included."""
        texts = {self.notebook: self.notebook_text, self.set: self.set_text}
        return [path for path, text in texts.items() if not path.is_file() or path.read_bytes() != text.encode()]

    def write(self) -> list[Path]:
        """Write what differs, each file whole or not at all, and say which files those were."""
        changed = self.differing()
        for path, text in ((self.notebook, self.notebook_text), (self.set, self.set_text)):
            if path in changed:
                with replacing(path) as draft:
                    draft.write_text(text, encoding="utf-8", newline="\n")
        return changed


def released(path: Path, exercises: Path, sets: Path = SETS) -> Released:
    """What `path` is released as, into the folders `exercises` and `sets`; writes nothing, runs every known mistake.

    Raises `CourseError` where a question is not fit to be handed out.
    """
    authored = load_solutions(path)
    notebook = exercise_notebook(read_plain(path), authored)
    return Released(
        exercises / path.name,
        json_text(notebook),
        sets / f"{path.stem}.json",
        json_text({"name": path.stem, "source": _digest(path), "questions": [set_entry(each) for each in authored]}),
    )


def is_released(path: Path, exercises: Path, sets: Path = SETS) -> bool:
    """Whether both files were made from `path` as it stands: by the notebook's text and the set's digest, running no answer."""
    notebook, stored = exercises / path.name, sets / f"{path.stem}.json"
    if not (notebook.is_file() and stored.is_file()):
        return False
    text = json_text(exercise_notebook(read_plain(path), load_solutions(path)))
    return notebook.read_bytes() == text.encode() and json.loads(stored.read_bytes()).get("source") == _digest(path)


def _digest(path: Path) -> str:
    """Of all cells' sources, hidden parts too."""
    return hashlib.sha256(json.dumps([cell["source"] for cell in read_cells(path)]).encode()).hexdigest()


def exercise_notebook(notebook: dict, authored: list[Authored]) -> dict:
    """The learner's notebook: no question cells, no solutions, no outputs; cell ids stay."""
    stubs = {each.question.id: each.stub for each in authored}
    for each in authored:
        _check_statement(each)
    cells = [_released_cell(cell, stubs) for cell in notebook["cells"] if (marker(cell) or ("",))[0] != "QUESTION"]
    return {**notebook, "cells": cells}


def facts(question: Question) -> str:
    """The line that every statement shows: `*q1 · medium · 20 minutes · 6 points*`."""
    points, minutes = format_counted(question.points, "point"), format_counted(question.minutes, "minute")
    return f"*{question.id} · {LEVELS[question.difficulty]} · {minutes} · {points}*"


def set_entry(authored: Authored) -> dict:
    """One question as a learner's machine may know it."""
    question, trial = authored.question, Trial(authored)
    plain = ("id", "title", "points", "difficulty", "minutes", "answer", "parts", "reveal")
    entry = {
        **{name: getattr(question, name) for name in plain},
        "hints": list(question.hints),
        "counted": list(question.counted),
        "tolerance": {"relative": question.tolerance.relative, "absolute": question.tolerance.absolute},
        "code": authored.code,
        "stub": authored.stub,
        "has_hidden": question.hidden is not None,
        "mistakes": _named(authored, trial),
    }
    for fault in trial.faults(entry):
        raise CourseError(f"{question.id} cannot be released: {fault}")
    return entry


def _named(authored: Authored, trial: Trial) -> dict[str, dict]:
    try:
        return _mistakes(authored, trial)
    except CourseError as error:
        raise CourseError(f"{authored.question.id} cannot be released: {error}") from None


def _mistakes(authored: Authored, trial: Trial) -> dict[str, dict]:
    """Every known mistake with its prints on as few cases as tell all of them, and the solution, apart."""
    sources = {mistake.name: mistaken(authored.solution, mistake) for mistake in authored.question.mistakes}
    found = {name: trial.prints(source) for name, source in sources.items()}
    telling = _telling_cases([trial.prints(authored.solution), *found.values()]) if found else []
    return {
        mistake.name: {
            "sentence": mistake.sentence,
            "hint": mistake.hint,
            "prints": {case: found[mistake.name][case] for case in telling},
        }
        for mistake in authored.question.mistakes
    }


def _telling_cases(every: list[dict[str, dict]]) -> list[str]:
    """Cases, each chosen for telling the most pairs of `every` apart that were alike so far."""
    pairs, chosen = set(combinations(range(len(every)), 2)), []
    told = {case: {(i, j) for i, j in pairs if _away(every[i][case], every[j][case]) > 1} for case in every[0]}
    while best := max(told, key=lambda case: len(told[case] & pairs)):
        if not told[best] & pairs:
            break
        chosen.append(best)
        pairs -= told[best]
    return sorted(chosen)


def json_text(value: dict) -> str:
    """JSON as Jupyter stores notebooks: sorted, one space of indentation, sources by line, a newline at the end."""
    lines = _by_line(value)
    return json.dumps(lines, ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_text(path: Path, value: dict) -> None:
    """Store `value` as `json_text` at `path`, whole or not at all."""
    with replacing(path) as draft:
        draft.write_text(json_text(value), encoding="utf-8", newline="\n")


def _by_line(value: dict) -> dict:
    cells = [{**cell, "source": cell["source"].splitlines(keepends=True)} for cell in value.get("cells", [])]
    return {**value, "cells": cells} if "cells" in value else value


def _released_cell(cell: dict, stubs: dict[str, str]) -> dict:
    mark = marker(cell)
    metadata = {key: cell["metadata"][key] for key in _KEPT_METADATA if key in cell["metadata"]}
    kept = {**cell, "metadata": metadata, "source": stubs[mark[1]] if mark else cell["source"]}
    return {**kept, "execution_count": None, "outputs": []} if cell["cell_type"] == "code" else kept


def _check_statement(authored: Authored) -> None:
    line = facts(authored.question)
    if line not in authored.statement.splitlines():
        raise CourseError(
            f"The statement of {authored.question.id} lacks its facts; put this line below its heading: {line}"
        )
