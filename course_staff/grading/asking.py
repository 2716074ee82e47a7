"""One answer in a process of its own: what is sent there, and how the reply, which may be anything, is read."""

import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course_staff.grading import encoding
from course_staff.grading.sandbox import Conversation, Lane, NotStartedError, SandboxError
from course_staff.grading.submission import Cell, ParsedCell
from course_utils.grading import judge
from course_utils.grading.judge import OUTCOME_KINDS, Outcome

CELL_SECONDS, CELLS_SECONDS = 20.0, 60.0
"""Time limit of one cell, and of all cells of a question together that are no answer."""
PARSE_SECONDS = 10.0
"""Time limit of the parser, for all cells of a submission."""
GRACE = 5.0
"""Seconds that a process gets to say itself that its time was up."""
# All cases together may take the time limit of one case times this.
_ALL_CASES_FACTOR = 10
_MOST_NOTES = 10
_FORGED = Outcome("unsafe", text="What came back is not a case's result.")
_MOST_JUDGED = f"the {encoding.LONGEST_MESSAGE:,} bytes that are judged"
_TOO_LONG = Outcome("unsafe", text=f"All cases together returned more than {_MOST_JUDGED}.")


@dataclass(frozen=True)
class Replies:
    """What an answer gave on its cases, and notes on its cells. `starved`: see `Conversation`."""

    outcomes: list[Outcome]
    notes: list[str]
    starved: bool = False


def parse_in_sandbox(sources: list[str], lane: Lane) -> list[ParsedCell]:
    """What a process in the sandbox parsed each cell as; the defaults of `ParsedCell` if the parser takes too long."""
    try:
        with lane.open_process() as conversation, conversation.time_limit(PARSE_SECONDS):
            descriptions = encoding.load(conversation.ask(pickle.dumps({"sources": sources})))
        return [_read_parsed(description) for description, _ in zip(descriptions, sources, strict=True)]
    except NotStartedError:
        raise
    except (SandboxError, encoding.TornError, encoding.EncodingError, LookupError, TypeError, ValueError):
        return [ParsedCell()] * len(sources)


def _read_parsed(description: dict) -> ParsedCell:
    flags = {name: description[name] is True for name in ("is_valid", "is_check", "opaque")}
    names = {name: frozenset(map(str, description[name])) for name in ("defines", "binds", "uses", "changes")}
    return ParsedCell(**flags, **names)


def ask(
    cells: Sequence[tuple[Cell, bool]], pickled_question: bytes, inputs: Sequence[bytes], seconds: float, lane: Lane
) -> Replies:
    """Run the cells, then the answer on each case, for at most `seconds` each; `inputs` has the pickled inputs of each case.

    A sandbox that breaks is replaced once; what breaks it twice is the answer's own doing.
    """
    job = {
        "cells": [[cell.number, cell.source, is_answer] for cell, is_answer in cells],
        "seconds": seconds,
        "cell_seconds": CELL_SECONDS,
        "cells_seconds": CELLS_SECONDS,
    }
    for is_last_attempt in (False, True):
        try:
            return _converse(job, pickled_question, inputs, lane)
        except SandboxError as error:
            if is_last_attempt and isinstance(error, NotStartedError):
                raise
            replies = Replies([Outcome("died", text=str(error))] * len(inputs), [])
    return replies


def _converse(job: dict, pickled_question: bytes, inputs: Sequence[bytes], lane: Lane) -> Replies:
    """Send the job, the question and one case after the other to a new process; cases that it never answers end as the last."""
    outcomes: list[Outcome] = []
    notes: list[str] = []
    limit_in_force = CELLS_SECONDS + 2 * CELL_SECONDS
    with lane.open_process() as conversation:
        try:
            with conversation.time_limit(limit_in_force + GRACE):
                no_answer, notes = _read_opening(conversation.ask(pickle.dumps(job), pickled_question))
            limit_in_force = job["seconds"]
            for outcome in [no_answer] if no_answer else _ask_cases(conversation, inputs, limit_in_force):
                outcomes.append(outcome)
            if outcomes[-1].kind in judge.ENDLESS:
                conversation.measure_starvation()
        except encoding.TornError:
            timeout = Outcome("timeout", text=f"{limit_in_force:g} s")
            outcomes.append(timeout if conversation.timed_out else Outcome("died"))
    if lane.excess and outcomes[-1].kind == "died":
        outcomes[-1] = Outcome("died", text=lane.excess)
    return Replies(outcomes + outcomes[-1:] * (len(inputs) - len(outcomes)), notes, conversation.starved)


def _ask_cases(conversation: Conversation, inputs: Sequence[bytes], seconds: float) -> Iterator[Outcome]:
    """The outcome of one case after the other, up to the first that does not end, or with which too much was returned."""
    bytes_left = encoding.LONGEST_MESSAGE
    end = time.monotonic() + _ALL_CASES_FACTOR * seconds
    for case_inputs in inputs:
        with conversation.time_limit(min(seconds + GRACE, end - time.monotonic())):
            message = conversation.ask(case_inputs)
        bytes_left -= len(message)
        outcome = _read_outcome(message) if bytes_left >= 0 else _TOO_LONG
        yield outcome
        if outcome is _TOO_LONG or outcome.kind in judge.ENDLESS:
            return  # nobody waits for the same endless loop a dozen times


def _read_opening(message: bytes) -> tuple[Outcome | None, list[str]]:
    """What a process sends after its cells have run: an outcome if there is no answer, and a note on each cell that stopped."""
    try:
        match encoding.load(message):
            case {"outcome": outcome, "notes": list(notes)}:
                return None if outcome is None else _to_outcome(outcome), [_note(note) for note in notes[:_MOST_NOTES]]
    except encoding.EncodingError:
        pass
    return _FORGED, []


def _note(note: object) -> str:
    match note:
        case [int(number), ""]:
            return f"Cell {number} was not run: the cells above it used up their {CELLS_SECONDS:g} s."
        case [int(number), str(text)]:
            return f"Cell {number} stopped with {text[: encoding.LONGEST_TEXT]}."
    raise encoding.EncodingError("This is no note.")


def _read_outcome(message: bytes) -> Outcome:
    try:
        return _to_outcome(encoding.load(message))
    except encoding.EncodingError as error:
        return Outcome("unsafe", text=f"What came back cannot be judged: {error}")


def _to_outcome(plain: object) -> Outcome:
    match plain:
        case {"kind": str(kind), "values": dict(values), "text": str(text), "line": str(line), "mutated": list(names)}:
            if kind in OUTCOME_KINDS and all(type(name) is str for name in names):
                text, line = (string[: encoding.LONGEST_TEXT] for string in (text, line))
                return Outcome(kind, values, text, line, tuple(name[:60] for name in names[:20]))
    return _FORGED
