"""Chapter 00: a run's curves, and the peak against the batch."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.training import History
from course_utils.viz.plots import lines, panels


def learning_curves(history: History, chance: float) -> tuple[Figure, str]:
    """Loss of each step beside the accuracy after each epoch; `chance` is the accuracy of always naming one class.

    Raises `CourseError` when the history has no evaluation.
    """
    if not history.evaluations:
        raise CourseError("There is no evaluation to draw; train with evaluate_on=….")
    loss = history.frame()["loss"]
    mean = loss.rolling(20, min_periods=1, center=True).mean()
    accuracy = history.evaluation_frame().set_index("step")["accuracy"]
    figure, (left, right) = panels(1, 2, height=3.2)
    curves = {"each step": loss, "mean of 20": mean}
    title = f"The mean loss falls from {mean.iloc[0]:.2f} to {mean.iloc[-1]:.2f}"
    styles = {"each step": ("not attributed", "-"), "mean of 20": ("first", "-")}
    _, first = lines(curves, title, y="training loss", styles=styles, labels="legend", number=".2f", axes=left)
    title = f"On unseen files {accuracy.iloc[-1]:.0%} are right"
    levels = {"always the largest class": chance}
    _, second = lines({"accuracy": accuracy}, title, y="accuracy", levels=levels, number=".2f", axes=right)
    right.set_ylim(0, 1)
    return figure, f"Left: {first} Right: {second}"


def peak_against_batch(
    batch_sizes: Sequence[int], measured: Sequence[int], predicted: Mapping[int, int], rule: int
) -> tuple[Figure, str]:
    """Measured peaks as points over the predicted line, against batch size; all in bytes.

    `predicted` has sizes between those measured too: the line bends where another instant becomes the fullest. `rule` is the
    rule of thumb of four numbers for each parameter, the same for all.
    """
    data = {"predicted": predicted, "measured": dict(zip(batch_sizes, measured, strict=True))}
    title = "With few examples the peak is near the rule; with many, activations dominate"
    styles = {"predicted": ("predicted", "-"), "measured": ("measured", "o")}
    levels = {"four numbers for each parameter": rule}
    return lines(data, title, "examples in the batch", "peak of a step", unit="bytes", styles=styles, levels=levels)
