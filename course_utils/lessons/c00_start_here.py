"""Chapter 00: a run's curves, and the peak against the batch."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.training import History
from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, subplots
from course_utils.viz.style import COLORS, writing


def learning_curves(history: History, chance: float) -> tuple[Figure, str]:
    """Loss of each step beside the accuracy after each epoch; `chance` is the accuracy of always naming one class.

    Raises `CourseError` when the history has no evaluation.
    """
    if not history.evaluations:
        raise CourseError("There is no evaluation to draw; train with evaluate_on=….")
    steps, evaluations = history.frame(), history.evaluation_frame()
    first, last = steps["loss"].iloc[0], steps["loss"].iloc[-20:].mean()
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 3.0), layout="constrained")
    left.plot(steps.index, steps["loss"], color=COLORS["not attributed"], linewidth=0.8, label="each step")
    mean = steps["loss"].rolling(20, min_periods=1, center=True).mean()
    left.plot(steps.index, mean, color=COLORS["first"], label="mean of 20")
    left.legend()
    left.set(xlabel="step", ylabel="training loss", title=f"The loss falls from {first:.2f} to {last:.2f}")
    left.set_ylim(0, 1.1 * steps["loss"].max())  # a short run's curve is nearly flat: it stays clear of the frame
    right.plot(evaluations["step"], evaluations["accuracy"], "o-", color=COLORS["first"])
    right.axhline(chance, color=COLORS["warning"], linestyle="--")
    right.text(
        steps.index[-1], chance - 0.02, "always the largest class", ha="right", va="top", color=writing("warning")
    )
    at_end = evaluations["accuracy"].iloc[-1]
    right.set(
        xlabel="step", ylabel="accuracy", title=f"On unseen files {at_end:.0%} are right", xlim=(0, None), ylim=(0, 1)
    )
    reached = ", ".join(f"{a:.2f}" for a in evaluations["accuracy"])
    return figure, (
        f"Left: the training loss goes from {first:.2f} to {last:.2f}. "
        f"Right: the accuracy after each epoch is {reached}, against {chance:.2f} for always naming the largest class."
    )


def peak_against_batch(
    batch_sizes: Sequence[int], measured: Sequence[int], predicted: Sequence[int], rule: int
) -> tuple[Figure, str]:
    """Measured peaks as points over the predicted line, against batch size; all in bytes.

    `rule` is the rule of thumb of four numbers for each parameter, the same for all.
    """
    unit, size = byte_unit(max(measured))
    figure, axes = subplots()
    axes.plot(batch_sizes, [p / size for p in predicted], color=COLORS["predicted"])
    axes.plot(batch_sizes, [m / size for m in measured], "o", color=COLORS["measured"])
    axes.axhline(rule / size, color=COLORS["warning"], linestyle="--")
    end, middle = batch_sizes[-1], len(batch_sizes) - 2
    for place, name, color, offset, side in (
        ((end, measured[-1]), "measured", "measured", (-10, -3), "right"),
        ((batch_sizes[middle], predicted[middle]), "predicted", "predicted", (12, -6), "left"),
        ((end, rule), "four numbers for each parameter", "warning", (-10, -16), "right"),
    ):
        at, look = (place[0], place[1] / size), {"ha": side, "color": writing(color)}
        axes.annotate(name, at, offset, textcoords="offset points", **look)
    axes.set(xlabel="examples in the batch", ylabel=f"peak of a step, {unit}", ylim=(0, None), xticks=list(batch_sizes))
    axes.set_title("With few examples the peak is near the rule; with many, activations dominate")
    points = zip(batch_sizes, predicted, measured, strict=True)
    pairs = ", ".join(f"{b}: {format_bytes(p)} and {format_bytes(m)}" for b, p, m in points)
    return (
        figure,
        f"Peak memory against batch size, a predicted line and measured points. Batch: predicted and measured. {pairs}. "
        f"Four numbers for each parameter are {format_bytes(rule)} throughout.",
    )
