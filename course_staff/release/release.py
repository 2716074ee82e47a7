"""From `solutions/NN_topic.ipynb` to what learners get: a notebook with holes, and a set that checks without the answers."""

import hashlib
import json
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from course_staff.notebooks.files import read_notebook
from course_staff.release.case_runner import CaseRunner
from course_staff.release.source import AuthoredQuestion, apply_mistake, marker
from course_utils.errors import CourseError
from course_utils.files import exercises_of, write_text
from course_utils.grading.fingerprints import distance_between, fingerprint
from course_utils.grading.loading import MistakeEntry, SetEntry
from course_utils.grading.oracles import pack, unpack
from course_utils.grading.question import LEVELS, Question
from course_utils.units import format_counted

_METADATA = ("tags", "slideshow")


def file_names(path: Path, exercises: Path, sets: Path) -> tuple[Path, Path]:
    """The learner's notebook and the set that the solutions at `path` are released as."""
    return exercises / Path(exercises_of(path.stem)).name, sets / f"{path.stem}.json"


def find_differing(texts: Mapping[Path, str]) -> list[Path]:
    """The files that do not hold their text, missing ones included; a set's numbers may differ by another machine's rounding."""
    return [path for path, text in texts.items() if not (path.is_file() and _agrees_with(path, text))]


def _agrees_with(path: Path, text: str) -> bool:
    if path.suffix != ".json" or path.read_bytes() == text.encode():
        return path.read_bytes() == text.encode()
    try:
        return distance_between(*(_open_oracles(json.loads(s)) for s in (path.read_text(encoding="utf-8"), text))) <= 1
    except ValueError:
        return False


def _open_oracles(exercise_set: dict) -> dict:
    """The set, changed in place: what its oracles returned is replaced by a fingerprint, which allows for rounding."""
    for entry in exercise_set.get("questions", ()):
        if "oracle" in entry:
            entry["oracle"] = fingerprint(unpack(entry["oracle"]))
    return exercise_set


def renew(texts: Mapping[Path, str]) -> None:
    """Write the texts, each file completely or not at all; a set keeps stored numbers that differ only by rounding."""
    for path, text in texts.items():
        if path.suffix == ".json" and path.is_file():
            text = _with_stored_numbers(path, text)
        write_text(path, text)


def _with_stored_numbers(path: Path, text: str) -> str:
    """The set's text, with the stored values of `path` wherever they differ only by rounding: a question of which only words
    changed stays the same, and keeps its grades."""
    new = json.loads(text)
    try:
        stored_entries = {entry["id"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))["questions"]}
    except (ValueError, KeyError, TypeError):
        return text
    for entry in new["questions"]:
        before = stored_entries.get(entry["id"], {})
        for name in entry.keys() & before.keys():
            values = (_open_oracles({"questions": [{name: version[name]}]}) for version in (before, entry))
            if distance_between(*values) <= 1:
                entry[name] = before[name]
    return json_text(new)


def digest_of(path: Path) -> str:
    """A hash of the sources of all cells, hidden parts included."""
    return hashlib.sha256(json.dumps([cell["source"] for cell in read_notebook(path).cells]).encode()).hexdigest()


def exercise_notebook(notebook: dict, all_authored: list[AuthoredQuestion]) -> dict:
    """The learner's notebook: no question cells, no solutions, no outputs; cell ids stay."""
    check_facts(all_authored)
    stubs = {authored.question.id: authored.stub for authored in all_authored}
    lines = {facts(authored.question): terms(authored.question) for authored in all_authored}
    cells = [cell for cell in notebook["cells"] if (marker(cell) or ("",))[0] != "QUESTION"]
    return {**notebook, "cells": [_release_cell(cell, stubs, lines) for cell in cells]}


def check_facts(all_authored: list[AuthoredQuestion]) -> None:
    """Raises `CourseError` if a statement does not show what its question's cell says of points, minutes and difficulty."""
    for authored in all_authored:
        question = authored.question
        line = facts(question)
        lines = authored.statement.splitlines()
        if line in lines:
            continue
        if stated := next((text for text in lines if text.startswith(f"*{question.id} · ")), None):
            raise CourseError(
                f"The statement of {question.id} says {stated}, and its question's cell says difficulty={question.difficulty}, "
                f"minutes={question.minutes}, points={question.points}; change that cell, or put this in the statement: {line}"
            )
        raise CourseError(f"The statement of {question.id} lacks its facts line; put this below its heading: {line}")


def facts(question: Question) -> str:
    """The line that every statement shows: `*q1 · medium · 20 minutes · 6 points*`."""
    points, minutes = format_counted(question.points, "point"), format_counted(question.minutes, "minute")
    return f"*{question.id} · {LEVELS[question.difficulty]} · {minutes} · {points}*"


def terms(question: Question) -> str:
    """The line below the facts: `*You may use everything except `torch.optim.SGD`.*`"""
    *names, last = [f"`{name}`" for name in question.replaces if "._" not in name] or [""]
    but = f" except {', '.join(names)}{' and ' if names else ''}{last}" if last else ""
    return f"*You may use everything{but}.*"


def set_entry(authored: AuthoredQuestion) -> SetEntry:
    """One question as a learner's machine may know it; raises `CourseError` if it is not fit to be handed out."""
    question = authored.question
    cases = question.cases()
    runner = CaseRunner(authored, cases)
    plain = ("id", "title", "points", "difficulty", "minutes", "answer", "parts", "reveal")
    try:
        entry = {
            **{name: getattr(question, name) for name in plain},
            "hints": list(question.hints),
            "counted": list(question.counted),
            "tolerance": {"relative": question.tolerance.relative, "absolute": question.tolerance.absolute},
            "code": authored.code,
            "stub": authored.stub,
            "has_hidden": question.hidden is not None,
            "cases": [case.name for case in cases],
            "mistakes": _describe_mistakes(authored, runner),
            **({"oracle": pack(authored.record_answers())} if authored.oracle else {}),
        }
        for fault in runner.faults(entry):
            raise CourseError(fault)
    except CourseError as error:
        raise CourseError(f"{question.id} cannot be released: {error}") from None
    return entry


def _describe_mistakes(authored: AuthoredQuestion, runner: CaseRunner) -> dict[str, MistakeEntry]:
    """Every known mistake with the cases that it fails, and its fingerprints on the few cases that distinguish all mistakes and
    the solution; of a question in parts those of the parts that it fails, because other parts may be wrong, too.
    """
    mistakes, parts = authored.question.mistakes, authored.question.parts
    sources = {mistake.name: apply_mistake(authored.solution, mistake) for mistake in mistakes}
    by_mistake = {name: runner.fingerprints(source) for name, source in sources.items()}
    for name, by_case in by_mistake.items():
        if timeouts := [case for case, fingerprint in by_case.items() if fingerprint["kind"] == "timeout"]:
            raise CourseError(
                f"the mistake {name!r} ran out of time on {timeouts[0]!r}; try again when the machine is idle."
            )
    fails = {name: runner.failed_cases(source) for name, source in sources.items()}
    telling = _telling_cases([runner.fingerprints(authored.solution), *by_mistake.values()]) if by_mistake else []
    entries = {mistake.name: {"sentence": mistake.sentence, "hint": mistake.hint} for mistake in mistakes}
    for name, entry in entries.items():
        entry |= {} if parts else {"fails": fails[name]}
        entry["prints"] = {case: by_mistake[name][case] for case in (fails[name] if parts else telling)}
    return entries


def _telling_cases(answers: list[dict[str, dict]]) -> list[str]:
    """Cases by whose fingerprints all `answers` differ: each next one separates the most pairs that are not separated yet."""
    pairs = set(combinations(range(len(answers)), 2))
    cases: list[str] = []
    separates = {
        case: {(i, j) for i, j in pairs if distance_between(answers[i][case], answers[j][case]) > 1}
        for case in answers[0]
    }
    while best := max(separates, key=lambda case: len(separates[case] & pairs)):
        if not separates[best] & pairs:
            break
        cases.append(best)
        pairs -= separates[best]
    return sorted(cases)


def json_text(value: dict) -> str:
    """JSON with sorted keys, one space of indentation and a newline at the end, as Jupyter stores notebooks."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _release_cell(cell: dict, stubs: dict[str, str], lines: dict[str, str]) -> dict:
    """A learner's cell: an answer's stub, a statement with the line on what may be used, any other cell as it is."""
    mark = marker(cell)
    text = cell["source"]
    if cell["cell_type"] == "markdown":
        text = "\n".join(f"{line}\n\n{lines[line]}" if line in lines else line for line in text.split("\n"))
    metadata = {key: cell["metadata"][key] for key in _METADATA if key in cell["metadata"]}
    without_outputs = {"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}
    return {**cell, "metadata": metadata, "source": stubs[mark[1]] if mark else text, **without_outputs}
