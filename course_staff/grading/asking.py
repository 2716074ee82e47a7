"""One answer in a process of its own, which may say anything: what is sent there, and what is made of what comes back."""

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass

from course_staff.grading import encoding, isolate
from course_staff.grading.sandbox import Lane, NotStartedError, SandboxError
from course_staff.grading.submission import Cell, Parsed
from course_utils.grading import judge
from course_utils.grading.judge import OUTCOME_KINDS, Outcome

CELL_SECONDS, CELLS_SECONDS = 20.0, 60.0
"""Time limit of one cell, and of all cells of a question together that are no answer."""
_CASES = 10  # times the limit of one case is what all cases together may take
PARSE_SECONDS = 10.0
"""Time limit of the parser, for all cells of a submission."""
GRACE = 5.0
"""Seconds that a process gets to say itself that its time was up."""
_MOST_NOTES = 10
_LONGEST = 400  # characters of whatever text comes back
_FORGED = Outcome("unsafe", text="What came back is not a case's result.")
_MOST_JUDGED = f"the {encoding.LONGEST:,} bytes that are judged"
_TOO_LONG = Outcome("unsafe", text=f"All cases together returned more than {_MOST_JUDGED}.")


@dataclass(frozen=True)
class Replies:
    """What an answer gave on its cases, and notes on its cells. `starved`: it ran out of time (see `Talk.starved`)."""

    outcomes: list[Outcome]
    notes: list[str]
    starved: bool = False


def parse_in_sandbox(sources: list[str], lane: Lane) -> list[Parsed]:
    """What each cell is, said by a process of the sandbox; nothing is known of cells that keep the parser busy too long."""
    try:
        with lane.open_process() as talk, talk.within(PARSE_SECONDS):
            descriptions = encoding.load(talk.ask(pickle.dumps({"sources": sources, "limits": isolate.LIMITS})))
        return [_read_parsed(description) for description, _ in zip(descriptions, sources, strict=True)]
    except NotStartedError:
        raise
    except (SandboxError, encoding.TornError, encoding.EncodingError, LookupError, TypeError, ValueError):
        return [Parsed()] * len(sources)


def _read_parsed(description: dict) -> Parsed:
    flags = {name: description[name] is True for name in ("is_check", "opaque")}
    names = {name: frozenset(map(str, description[name])) for name in ("defines", "binds", "uses", "changes")}
    return Parsed(**flags, **names)


def ask(
    cells: Sequence[tuple[Cell, bool]], question: bytes, inputs: Sequence[bytes], seconds: float, lane: Lane
) -> Replies:
    """Run the cells, then the answer on each case, for at most `seconds` each; `question` and `inputs` are pickled.

    A sandbox that breaks is replaced once; what breaks it twice is the answer's own doing.
    """
    try:
        return _converse(cells, question, inputs, seconds, lane)
    except SandboxError:
        pass
    try:
        return _converse(cells, question, inputs, seconds, lane)
    except NotStartedError:
        raise
    except SandboxError as error:
        return Replies([Outcome("died", text=str(error))] * len(inputs), [])


def _converse(
    cells: Sequence[tuple[Cell, bool]], question: bytes, inputs: Sequence[bytes], seconds: float, lane: Lane
) -> Replies:
    job = {
        "cells": [[cell.number, cell.source, is_answer] for cell, is_answer in cells],
        "seconds": seconds,
        "cell_seconds": CELL_SECONDS,
        "cells_seconds": CELLS_SECONDS,
        "limits": isolate.LIMITS,
    }
    outcomes: list[Outcome] = []
    notes: list[str] = []
    limit, bytes_left = CELLS_SECONDS + 2 * CELL_SECONDS, encoding.LONGEST
    with lane.open_process() as talk:
        try:
            with talk.within(limit + GRACE):
                no_answer, notes = _read_opening(talk.ask(pickle.dumps(job), question))
            limit, end = seconds, time.monotonic() + _CASES * seconds
            for case_inputs in () if no_answer else inputs:
                with talk.within(min(seconds + GRACE, end - time.monotonic())):
                    message = talk.ask(case_inputs)
                bytes_left -= len(message)
                outcomes.append(_read_outcome(message) if bytes_left >= 0 else _TOO_LONG)
                if outcomes[-1] is _TOO_LONG or outcomes[-1].kind in judge.ENDLESS:
                    break  # nobody waits for the same endless loop a dozen times
            outcomes += [no_answer] if no_answer else []
            if outcomes[-1].kind in judge.ENDLESS:
                talk.measure_starvation()
        except encoding.TornError:
            outcomes.append(Outcome("timeout", text=f"{limit:g} s") if talk.timed_out else Outcome("died"))
    if lane.excess and outcomes[-1].kind == "died":
        outcomes[-1] = Outcome("died", text=lane.excess)
    return Replies(outcomes + outcomes[-1:] * (len(inputs) - len(outcomes)), notes, talk.starved)


def _read_opening(message: bytes) -> tuple[Outcome | None, list[str]]:
    """What a process says after its cells have run: an outcome where there is no answer, and what stopped which cell."""
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
            return f"Cell {number} stopped with {text[:_LONGEST]}."
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
                return Outcome(kind, values, text[:_LONGEST], line[:_LONGEST], tuple(name[:60] for name in names[:20]))
    return _FORGED
