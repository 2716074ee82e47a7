"""Chapter 00: a run's curves, and the peak against the batch."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.training import History
from course_utils.viz.plots import add_title, lines, panels


def learning_curves(history: History, chance: float) -> tuple[Figure, str]:
    """Loss beside the accuracy after each epoch; `chance` is the accuracy of always naming one class."""
    if not history.evaluations:
        raise CourseError("There is no evaluation to draw; train with evaluate_on=….")
    loss = history.frame()["loss"].rolling(20, min_periods=1, center=True).mean()
    accuracy = history.evaluation_frame().set_index("step")["accuracy"]
    figure, (left, right) = panels(1, 2, height=3.2)
    lines({"loss": loss}, "training, mean of 20 steps", y="loss", labels="none", number=".2f", axes=left)
    levels = {"always the largest class": chance}
    lines({"accuracy": accuracy}, "unseen functions", y="accuracy", levels=levels, number=".2f", axes=right)
    return add_title(figure, f"The training loss ends at {loss.iloc[-1]:.2f}, the accuracy at {accuracy.iloc[-1]:.0%}")


def peak_against_batch(
    batch_sizes: Sequence[int], measured: Sequence[int], predicted: Mapping[int, int], rule: int
) -> tuple[Figure, str]:
    """Peaks against batch size, and the rule of thumb of four numbers for each parameter; all in bytes."""
    data = {"predicted": predicted, "measured": dict(zip(batch_sizes, measured, strict=True))}
    title = "With few examples the peak is near the rule; with many, activations dominate"
    styles = {"measured": ("measured", "o")}
    levels = {"four numbers for each parameter": rule}
    return lines(data, title, "examples in the batch", "peak of a step", unit="bytes", styles=styles, levels=levels)
