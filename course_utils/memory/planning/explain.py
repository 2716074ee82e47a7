"""Explanations of memory: why it did not fall between two recipes, and why it ran out, by an error message or a snapshot."""

import pickle
import re
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from math import inf
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.memory.formulas.estimate import Estimate
from course_utils.units import BYTE_UNITS, format_bytes

_UNITS = dict(BYTE_UNITS) | {"bytes": 1, "B": 1}
_AMOUNT = r"([\d.]+) (GiB|MiB|KiB|bytes|B)"
# The words of torch's messages since 2.1, and before.
_AMOUNTS = {
    "requested": rf"Tried to allocate {_AMOUNT}",
    "card": rf"total capaci?ty of {_AMOUNT}|{_AMOUNT} total capacity",
    "free": rf"of which {_AMOUNT} is free|{_AMOUNT} free",
    "allocated": rf"allocated memory {_AMOUNT} is allocated by PyTorch|{_AMOUNT} already allocated",
    "reserved": rf"{_AMOUNT} reserved in total by PyTorch",
    "reserved but unused": rf"{_AMOUNT} is reserved by PyTorch but unallocated",
}
_SHORTAGE = r"Tried to allocate|CUDA error: out of memory"
# Patterns of a traceback's lines, each with a phase and its name. The first pattern that matches any line counts, since backward
# may run a forward pass.
_MOMENTS = (
    (r"\.backward\(|run_backward|unpack_hook", "backward", "the backward pass"),
    (r"optim/\w+\.py|optimizer\.step|_foreach_|_init_group", "update", "the optimizer's step"),
    (
        r"cross_entropy|loss_function|ForCausalLMLoss|log_softmax",
        "forward",
        "the loss: logits in float32 and their softmax",
    ),
    (r"in \w*forward|compute_loss|training_step|softmax", "forward", "the forward pass"),
    (r"\.to\(|\.cuda\(|_apply|load_state_dict|torch\.load", "loading", "moving or loading weights"),
)


def explain_change(before: Estimate, after: Estimate) -> str:
    """A text on which terms fell from one recipe to another, which did not, and which instant now has the peak."""
    peaks = [f"{format_bytes(estimate.peak)} in {estimate.peak_instant.name}" for estimate in (before, after)]
    lines = [f"peak: {', then '.join(peaks)}"]
    instants_before = before.by_instant()
    instants_after = after.by_instant()
    for phase in dict.fromkeys([*instants_before, *instants_after]):
        old = instants_before.get(phase, {})
        new = instants_after.get(phase, {})
        lines.append(f"{phase}: {format_bytes(sum(old.values()))} then {format_bytes(sum(new.values()))}")
        for kind in dict.fromkeys([*old, *new]):
            a, b = old.get(kind, 0), new.get(kind, 0)
            if abs(b - a) > 0.001 * before.peak:
                lines.append(f"  {kind}: {format_bytes(a)} then {format_bytes(b)}")
    if after.peak > 0.99 * before.peak:
        bound = after.peak_instant
        largest = max(bound.by_kind, key=bound.by_kind.get)
        lines.append(f"The peak did not fall, because it is in {bound.name}, where {largest} are largest.")
    return "\n".join(lines)


def explain(path: Path, estimate: Estimate | None = None) -> str:
    """An explanation of a shortage: of CUDA's message with its traceback, or of a snapshot by `torch.cuda.memory._dump_snapshot`.

    With an `estimate` of the same step, the requested piece is named. Raises `CourseError` for a file without such content.
    """
    if not path.is_file():
        raise CourseError(f"There is no file {path}; save the message, or the snapshot, and name its file.")
    data = path.read_bytes()
    if data[:1] == b"\x80":
        return "\n".join(_explain_snapshot(data))
    return "\n".join(_explain_message(data.decode("utf-8", "replace"), estimate))


def _explain_message(text: str, estimate: Estimate | None) -> Iterator[str]:
    ends = [match.start() for match in re.finditer(_SHORTAGE, text)]
    if not ends:
        raise CourseError("The file holds no CUDA out-of-memory message; it begins with 'CUDA out of memory'.")
    amounts = _amounts_in(" ".join(text[ends[-1] :].split()))
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in amounts.items())
    yield sizes or "CUDA ran out of memory; the message does not say how much was requested."
    trace = text[: ends[-1]].rpartition("Traceback (most recent call last)")[2]
    # The library rich marks the line that failed.
    lines = [line for line in trace.splitlines() if "❱" in line] or [trace]
    moments = (moment for pattern, *moment in _MOMENTS if any(re.search(pattern, line) for line in lines))
    phase, phase_name = next(moments, (None, None))
    if phase_name:
        yield f"It happened in {phase_name}."
    if estimate is not None and "requested" in amounts:
        yield from _locate_in_step(amounts["requested"], phase, estimate)
    if amounts.get("reserved but unused", 0) > 0.1 * amounts.get("card", inf):
        yield (
            "Much is reserved but unused: the allocator's blocks do not fit what is requested; "
            "try PYTORCH_ALLOC_CONF=expandable_segments:True."
        )


def _amounts_in(message: str) -> dict[str, int]:
    amounts = {}
    for name, pattern in _AMOUNTS.items():
        if match := re.search(pattern, message):
            amount, unit = filter(None, match.groups())
            amounts[name] = int(float(amount) * _UNITS[unit])
    if "reserved" in amounts and "allocated" in amounts:
        amounts["reserved but unused"] = max(0, amounts.pop("reserved") - amounts["allocated"])
    return amounts


def _locate_in_step(size: int, phase: str | None, estimate: Estimate) -> Iterator[str]:
    """Sentences on the allocation in the step that is nearest in size, and on the fullest instant."""
    log = estimate.log
    births = [
        (abs(change - size), index)
        for index, change in enumerate(log.changes.tolist())
        if change > 0 and index >= log.before_step and phase in (None, log.labels[index].phase)
    ]
    difference, index = min(births, default=(inf, 0))
    if difference < 0.01 * size + 2**20:
        phase, kind, module, operator = log.labels[index]
        place = f"in {phase}, in {module or 'no module'}, by {operator} ({kind})"
        yield f"A tensor of that size is allocated {place}, with {format_bytes(int(log.totals[index]))} in use."
    peak = estimate.peak_instant
    largest = ", ".join(f"{term.name} {format_bytes(term.bytes)}" for term in peak.terms_in_bytes[:3])
    yield f"The step's peak is in {peak.name}, {format_bytes(peak.bytes)}: {largest}."


def _explain_snapshot(data: bytes) -> Iterator[str]:
    try:
        segments = _PlainUnpickler(BytesIO(data)).load()["segments"]
    except Exception as error:  # unpickling unknown bytes may raise any exception
        raise CourseError(
            f"The file is no memory snapshot ({error}); make one with torch.cuda.memory._dump_snapshot(FILE)."
        ) from None
    by_line: Counter = Counter()
    for block in (block for segment in segments for block in segment.get("blocks", ())):
        if block.get("state") == "active_allocated":
            frames = [f for f in block.get("frames", ()) if "torch/" not in f.get("filename", "")]
            lines = [f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in frames]
            by_line[lines[0] if lines else "unknown"] += block["size"]
    reserved = sum(segment.get("total_size", 0) for segment in segments)
    yield f"allocated {format_bytes(sum(by_line.values()))}, reserved {format_bytes(reserved)}; by the line that allocated:"
    yield from (f"{format_bytes(size):>10s}  {line}" for line, size in by_line.most_common(10))


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain containers only, as a snapshot has them. Raises `CourseError` where a file asks for a class or function."""

    def find_class(self, module: str, name: str):
        raise CourseError(f"it asks for {module}.{name}")
