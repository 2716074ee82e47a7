"""A training step's memory by line, as measured, beside that of the same step with a fault in it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_iter

from course_utils.errors import CourseError
from course_utils.memory import Meter
from course_utils.memory.trace.phases import announced_to
from course_utils.memory.trace.usage import KINDS

_FILE = "<the step>"


@dataclass(frozen=True)
class LineUsage:
    """What is in use after a line: its number, 0 for the beginning, its phase, and bytes by kind."""

    line: int
    phase: str
    kinds: dict[str, int]

    @property
    def bytes(self) -> int:
        """Of all kinds together."""
        return sum(self.kinds.values())


@dataclass(frozen=True)
class Measured:
    """A step with a fault, beside the step as it should be.

    `step` is source with a statement to a line; `fault` a pair of text, before and after, the text before found there once.
    `names()` gives what the step works on, new each time: `model`, `optimizer`, and whatever else it names.
    """

    step: str
    fault: tuple[str, str]
    names: Callable[[], dict]

    def rows(self, faulty: bool = True) -> list[LineUsage]:
        """A row for the beginning and for each line that is run, in order; lines that open a block have none.

        Bytes are those of a `memory.Meter`.
        """
        old, new = self.fault
        if self.step.count(old) != 1:
            raise CourseError(f"The fault replaces {old!r}, which stands {self.step.count(old)} times in the step.")
        return _run_by_line(self.step.replace(old, new) if faulty else self.step, self.names())

    def first_difference(self) -> dict[str, object]:
        """`phase`, `kind` and `line` of the first row that is not as it should be; raises `CourseError` where all are."""
        pairs = zip(self.rows(), self.rows(faulty=False), strict=True)
        row, sound = next(((a, b) for a, b in pairs if a.bytes != b.bytes), (None, None))
        if row is None:
            raise CourseError("The fault changes no bytes after any line of the step; choose one that shows.")
        away = {kind: abs(row.kinds.get(kind, 0) - sound.kinds.get(kind, 0)) for kind in {*row.kinds, *sound.kinds}}
        return {"phase": row.phase, "kind": max(away, key=away.__getitem__), "line": row.line}

    def table(self) -> str:
        """In Markdown: the lines as they should be, and the MiB in use after each of them with the fault."""
        lines = self.step.splitlines()
        begun, *rows = self.rows()
        shown = [("", "before the step", begun.bytes)]
        shown += [(row.line, f"`{lines[row.line - 1].strip()}`", row.bytes) for row in rows]
        head = ["| line | | MiB in use after it |", "|---:|---|---:|"]
        return "\n".join([*head, *(f"| {line} | {what} | {size / 2**20:.2f} |" for line, what, size in shown)])


def _run_by_line(source: str, names: dict) -> list[LineUsage]:
    lines, rows, at, phase = source.splitlines(), [], [0], ["forward"]
    tensors = [each for each in tree_iter(list(names.values())) if isinstance(each, torch.Tensor)]
    models = [each for each in names.values() if isinstance(each, nn.Module)]
    optimizers = [each for each in names.values() if isinstance(each, torch.optim.Optimizer)]
    meter = Meter(models, optimizers, tensors=tensors, look_inside=False)

    def begin(name: str | None) -> None:
        phase[0] = name or phase[0]

    def trace(frame, event, _):
        if frame.f_code.co_filename != _FILE:
            return None
        if event in ("line", "return"):
            if not (at[0] and lines[at[0] - 1].rstrip().endswith(":")):
                rows.append(LineUsage(at[0], phase[0], _in_use(meter)))
            at[0] = frame.f_lineno
        return trace

    code, before = compile(source, _FILE, "exec"), sys.gettrace()
    with announced_to(begin, models, optimizers), meter:
        sys.settrace(trace)
        try:
            exec(code, {**names, "__name__": "step"})
        finally:
            sys.settrace(before)
    return rows


def _in_use(meter: Meter) -> dict[str, int]:
    """Bytes by kind, without those of which there are none."""
    usage = meter.usage()
    if usage.events:
        row = usage.timeline.iloc[-1]
        return {kind: int(row[kind]) for kind in KINDS if row[kind]}
    there = {kind: sum(piece.bytes for piece in usage.pieces if piece.kind == kind) for kind in KINDS}
    return {kind: size for kind, size in there.items() if size}
