"""A training within limits: bytes at the peak and operations are measured where it runs, the trained weights judged elsewhere.

The training runs in the learner's process, and so does what measures and guards it (`capstone.measuring`). Whoever reads that
can still get around it with some effort; what they cannot do is to say how good their weights are. The corpus lies within
reach of a determined reader too, as the standard library itself does, but token ids and labels are permuted in every case.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import nn

from course_utils.capstone.measuring import measured
from course_utils.capstone.task import Task, accuracy, fresh_model
from course_utils.grading.compare import Rule
from course_utils.grading.prints import WEIGHTS
from course_utils.grading.question import Case, Question, Values
from course_utils.units import format_bytes

BYTES, OPERATIONS, ACCURACY = "bytes", "operations", "accuracy"
_TOO_MANY = 2
"""Times the limit at which a training is stopped, so that nobody waits for one that goes on."""


@dataclass(frozen=True)
class Reaches(Rule):
    """Weights that reach a target; `accuracy(weights)` is the share, 0 to 1, that they get right on files never seen."""

    accuracy: Callable[[dict], float]


def trained(
    draw: Callable[[Random], Task], *, bytes: int, operations: int, target: float, hidden: int = 1, **fields
) -> Question:
    """A function `answer(model, ids, labels)` that trains the model in place, within limits, up to the accuracy `target`.

    `draw(random)` gives a task; the public case is one, and `hidden` more are drawn from the instructor's seed. Rows that are
    held out stay with the judge, who finds them by the number of a case's initial weights. Values: `bytes` at the peak of the
    whole call (the model, the data and all that is allocated meanwhile), `operations`, and the `weights` by name.
    """
    held: dict[int, Task] = {}

    def cases(source: Random, count: int = 1) -> list[Case]:
        tasks = [draw(source) for _ in range(count)]
        held.update({task.weights: task for task in tasks})
        names = ["train, then judge on other files"] if count == 1 else [f"other files, {i + 1}" for i in range(count)]
        given = [{"ids": task.ids, "labels": task.labels, "weights": task.weights} for task in tasks]
        return [Case(name, inputs) for name, inputs in zip(names, given, strict=True)]

    def expected(inputs: dict) -> Values:
        task = held[inputs["weights"]]
        least = (
            sum(p.nbytes for p in fresh_model(task.weights).parameters()) // 2 + task.ids.nbytes + task.labels.nbytes
        )
        limits = {
            BYTES: _at_most(bytes, least, format_bytes),
            OPERATIONS: _at_most(operations, task.ids.numel(), _say_count),
        }
        return {**limits, WEIGHTS: reaches(task, target)}

    def figures(right: Values, got: Values) -> dict[str, float]:
        reached = right[WEIGHTS].accuracy(got[WEIGHTS])
        return {BYTES: got[BYTES], OPERATIONS: got[OPERATIONS], ACCURACY: round(100 * reached, 2)}

    fixed = {"public": cases, "hidden": lambda source: cases(source, hidden), "counted": (BYTES, OPERATIONS)}
    fixed |= {"replaces": ("course_utils.data.functions",)}
    run = _runner(_TOO_MANY * operations)
    return Question(run=run, expected=expected, figures=figures, **{**fixed, **fields})


def _runner(most: int) -> Callable[[object, dict], Values]:
    """What runs in the learner's process; nothing of what is held out may hang on it."""

    def run(answer, inputs):
        model = fresh_model(inputs["weights"])
        given = {name: inputs[name] for name in ("ids", "labels")}
        peak, total = measured(lambda: answer(model, **given), model, given.values(), most)
        parameters = nn.Module.named_parameters(model)
        weights = {name: p.detach().float() if p.is_floating_point() else p.detach() for name, p in parameters}
        return {BYTES: peak, OPERATIONS: total, WEIGHTS: weights}

    return run


def reaches(task: Task, target: float) -> Reaches:
    """The rule that weights put at least the share `target` of the rows held out into the right package."""

    def reached(weights: dict) -> float:
        model = fresh_model(task.weights)
        model.load_state_dict(weights)
        return accuracy(model, task.held_ids, task.held_labels)

    def broken(weights) -> str | None:
        problem = _misfit(weights, fresh_model(task.weights))
        if problem:
            return problem
        share = reached(weights)
        return None if share >= target else f"reach {share:.1%} on files never seen; the target is {target:.0%}"

    return Reaches(broken, reached)


def _misfit(weights, model: nn.Module) -> str | None:
    """What keeps `weights` from being those of `model`."""
    if type(weights) is not dict:
        return "are no weights by name"
    wanted = dict(model.named_parameters())
    if missing := next((name for name in wanted if name not in weights), None):
        return f"lack `{missing}`; leave the model's parameters where they are, and merge what you added into them"
    if extra := next((name for name in weights if name not in wanted), None):
        return f"have `{extra[:60]}` beside the model's own; merge what you added into those, and take it out"
    for name, parameter in wanted.items():
        value = weights[name]
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or value.shape != parameter.shape:
            shape = tuple(getattr(value, "shape", ()))
            return f"have `{name}` of the shape {shape} or in another form; it has the shape {tuple(parameter.shape)}"
        if not value.isfinite().all():
            return f"have NaN or infinity in `{name}`; train with a smaller learning rate, or mask what divides by zero"
    return None


def _at_most(limit: int, least: int, shown: Callable[[float], str]) -> Rule:
    """A measured number from `least`, below which the measurement was lost, to `limit`."""

    def broken(got) -> str | None:
        if type(got) is not int:
            return "is no whole number, as a measurement would be"
        if got < least:
            return f"is {shown(got)}, less than any training takes ({shown(least)}): the measurement was lost"
        if got >= _TOO_MANY * limit and shown is _say_count:
            return f"is {_TOO_MANY} times the {shown(limit)} that are allowed, and the training was stopped there"
        return (
            None if got <= limit else f"is {shown(got)} where {shown(limit)} is allowed, {got / limit - 1:.0%} too much"
        )

    return Rule(broken)


def _say_count(count: float) -> str:
    return f"{count / 1e9:,.1f} billion" if count >= 1e8 else f"{count:,.0f}"
