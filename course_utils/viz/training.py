"""Figures about training runs."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.training import History
from course_utils.viz.parts import subplots
from course_utils.viz.style import COLORS, writing

_ORDER = ("first", "second", "third", "fourth")


def learning_curves(history: History, chance: float) -> tuple[Figure, str]:
    """Loss of each step beside the accuracy after each epoch; `chance` is the accuracy of always naming one class.

    Raises `CourseError` when the history has no evaluation.
    """
    if not history.evaluations:
        raise CourseError("There is no evaluation to draw; train with evaluate_on=….")
    steps, evaluations = history.frame(), history.evaluation_frame()
    figure, (left, right) = subplots(1, 2, figsize=(7.6, 3.0), layout="constrained")
    left.plot(steps.index, steps["loss"], color=COLORS["grid"], linewidth=1)
    left.plot(steps.index, steps["loss"].rolling(20, min_periods=1).mean(), color=COLORS["first"])
    left.set(xlabel="step", ylabel="training loss", title="Loss (mean of the last 20 steps)")
    left.set_ylim(0, 1.1 * steps["loss"].max())  # a short run's curve is nearly flat: it stays clear of the frame
    right.plot(evaluations["step"], evaluations["accuracy"], "o-", color=COLORS["first"])
    right.axhline(chance, color=COLORS["warning"], linestyle="--")
    right.text(
        steps.index[-1], chance - 0.02, "always the largest class", ha="right", va="top", color=writing("warning")
    )
    right.set(xlabel="step", ylabel="accuracy on unseen files", title="Accuracy", xlim=(0, None), ylim=(0, 1))
    reached = ", ".join(f"{a:.2f}" for a in evaluations["accuracy"])
    return figure, (
        f"Left: the training loss goes from {steps['loss'].iloc[0]:.2f} to {steps['loss'].iloc[-20:].mean():.2f}. "
        f"Right: the accuracy after each epoch is {reached}, against {chance:.2f} for always naming the largest class."
    )


def compare_losses(
    runs: Mapping[str, History], window: int = 1, level: tuple[str, float] | None = None
) -> tuple[Figure, str]:
    """The loss of up to four runs against steps, each the mean of its last `window` steps; `level` names a loss to compare with.

    Later runs are drawn thinner, so that one that lies on another leaves it visible. Raises `CourseError` for more runs.
    """
    if not 0 < len(runs) <= len(_ORDER):
        raise CourseError(f"One figure compares 1 to {len(_ORDER)} runs, not {len(runs)}; draw several figures.")
    figure, axes = subplots()
    ends = []
    for (name, history), color, width in zip(runs.items(), _ORDER, (3.2, 2.4, 1.2, 0.8), strict=False):
        smooth = history.frame()["loss"].rolling(window, min_periods=1).mean()
        axes.plot(smooth.index, smooth, color=COLORS[color], linewidth=width, label=name)
        ends.append(f"{name} from {smooth.iloc[0]:.2f} to {smooth.iloc[-1]:.2f}")
    if level is not None:
        axes.axhline(level[1], color=COLORS["ink"], linestyle=":", linewidth=1.2, label=level[0])
        ends.append(f"{level[0]} is at {level[1]:.2f}")
    axes.set(xlabel="step", ylabel="training loss")
    axes.legend()
    return figure, f"Training loss against steps: {'; '.join(ends)}."
