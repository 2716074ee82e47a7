"""Chapter 00: a run's curves, the peak against the batch, and the ledger as a picture."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.ledger import Ledger
from course_utils.training import History
from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, patches, subplots
from course_utils.viz.style import COLORS, writing


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


def peak_against_batch(
    batch_sizes: Sequence[int], measured: Sequence[int], predicted: Sequence[int], rule: int
) -> tuple[Figure, str]:
    """Measured peaks as points over the predicted line, against batch size; all in bytes.

    `rule` is the rule of thumb of four numbers for each parameter, the same for all.
    """
    unit, size = byte_unit(max(measured))
    figure, axes = subplots()
    axes.plot(batch_sizes, [p / size for p in predicted], color=COLORS["predicted"], label="predicted")
    axes.plot(batch_sizes, [m / size for m in measured], "o", color=COLORS["measured"], label="measured")
    axes.axhline(rule / size, color=COLORS["warning"], linestyle="--", label="four numbers each")
    axes.set(xlabel="examples in the batch", ylabel=f"peak of a step, {unit}", ylim=(0, None), xticks=list(batch_sizes))
    axes.legend()
    points = zip(batch_sizes, predicted, measured, strict=True)
    pairs = ", ".join(f"{b}: {format_bytes(p)} and {format_bytes(m)}" for b, p, m in points)
    return (
        figure,
        f"Peak memory against batch size, a predicted line and measured points. Batch: predicted and measured. {pairs}. "
        f"Four numbers for each parameter are {format_bytes(rule)} throughout.",
    )


def ledger_figure(ledger: Ledger) -> tuple[Figure, str]:
    """Two bars per row of a chapter's ledger, predicted and measured in bytes, with their difference as its table has it."""
    rows = ledger.rows
    unit, size = byte_unit(max(max(row.predicted, row.measured) for row in rows))
    figure, axes = subplots(figsize=(7.6, 0.8 + 0.62 * len(rows)), layout="constrained")
    said = []
    for place, row in enumerate(rows):
        predicted, measured = (
            row.in_words(row.predicted),
            f"{row.in_words(row.measured)}, {row.error:+.1%} not attributed",
        )
        for kind, note, y in (("predicted", predicted, place - 0.18), ("measured", measured, place + 0.18)):
            length = getattr(row, kind) / size
            axes.barh(y, length, 0.36, color=COLORS[kind])
            axes.text(length, y, f"  {note}", va="center", fontsize=9)
        said.append(f"{row.technique}, {row.quantity}: predicted {predicted}, measured {measured}")
    names = [f"{row.technique}\n{row.quantity}" for row in rows]
    axes.set(yticks=range(len(rows)), yticklabels=names, xlabel=f"memory, {unit}")
    axes.margins(x=0.6)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    figure.legend(*patches(("predicted", "predicted"), ("measured", "measured")), loc="outside upper center", ncols=2)
    return figure, f"Predicted beside measured. {'; '.join(said)}."
