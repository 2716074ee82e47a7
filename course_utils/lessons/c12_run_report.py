"""Chapter 12: what a run says of itself: where its time goes, and its log."""

import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
from matplotlib.figure import Figure
from torch.utils.data import DataLoader

from course_utils import training
from course_utils.data.batching import EpochSampler
from course_utils.hardware import Machine
from course_utils.script import Job
from course_utils.script.examples import load
from course_utils.script.optimizers import make_optimizer
from course_utils.settings import settings
from course_utils.training import History
from course_utils.training.profile import ELSEWHERE, LOADING, Profile, Trace, throughput
from course_utils.units import format_counted
from course_utils.viz.plots import add_title, legend, lines, panels


def profile_job(job: Job, steps: int = 4) -> tuple[Trace, History]:
    """What ran when in `steps` updates in this process, and the history of two more that nobody profiles."""
    source, examples = load(job)
    model = source.make().to(settings().device)
    rows = [{name: column[row] for name, column in examples.columns.items()} for row in range(len(examples))]
    loader = DataLoader(rows, job.batch, sampler=EpochSampler(len(rows), job.seed), drop_last=True)
    optimizer = make_optimizer(job.optimizer, model, job.lr, job.options)
    run = partial(training.train, model, optimizer, loader, progress=False)
    history = run(steps=steps + 2)
    with tempfile.TemporaryDirectory() as folder:
        profile = Profile(steps, path=Path(folder) / "trace.json")
        run(steps=steps + 3, callbacks=[profile])
    return profile.trace(), history


def checklist(trace: Trace, history: History, machine: Machine) -> pd.DataFrame:
    """A row for each question to a run that is slow: what was measured, and where to look.

    A share of the time counts where it is above a tenth, the utilization where it is below a half.
    """
    gaps = trace.gaps()
    speed = throughput(history, machine)
    loading, between = (gaps.loc[gaps["where"] == kind, "seconds"].sum() / trace.end for kind in (LOADING, ELSEWHERE))
    operators = trace.operator_seconds()["seconds"]
    first, share = operators.index[0], operators.iloc[0] / operators.sum()
    utilization = speed.utilization
    questions = {
        "Does the model wait for its data?": (f"{loading:.0%} of the time", loading > 0.1, "more num_workers"),
        "And for Python between updates?": (f"{between:.0%} of the time", between > 0.1, "callbacks, logs"),
        "Which share of the best rate?": (f"{utilization:.1%}", utilization < 0.5, "larger matrices, fewer operators"),
        "Which operator takes longest?": (f"{first.removeprefix('aten::')}, {share:.0%}", share > 0.5, "that operator"),
    }
    rows = {
        question: (measured, f"look at: {advice}" if suspicious else "fine")
        for question, (measured, suspicious, advice) in questions.items()
    }
    rate = speed.tokens_per_second
    rows["How many tokens a second?"] = f"{rate:,.0f}", f"at the best rate {rate / utilization:,.0f}"
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["measured", "verdict"])
    return table.rename_axis("question")


def logs() -> tuple[str, ...]:
    """What a run can log to here: TensorBoard too, where it is installed."""
    return ("csv", "tensorboard") if find_spec("tensorboard") else ("csv",)


def log_figure(folder: Path) -> tuple[Figure, str]:
    """The `log.csv` of a run: its loss and its tokens a second, each attempt for itself."""
    rows = pd.read_csv(folder / "log.csv")
    by_attempt = {f"attempt {number}": log.set_index("step") for number, log in rows.groupby("attempt")}
    figure, (left, right) = panels(1, 2, height=3.1)
    for axes, column, y in ((left, "loss", "loss"), (right, "tokens_per_second", "tokens a second")):
        data = {name: log[column] for name, log in by_attempt.items()}
        lines(data, "", "update", y, labels="none", axes=axes)
        axes.lines[-1].set(marker=".")
        axes.lines[0].set(marker="o", markersize=8, markerfacecolor="none", zorder=3)
    right.set_ylim(0, None)
    legend(right)
    attempts = "; ".join(
        f"{name}, updates {log.index.min()} to {log.index.max()}, loss {log['loss'].iloc[-1]:.2f}"
        for name, log in by_attempt.items()
    )
    twice = rows.groupby("step")["loss"].agg(["count", "max", "min"]).query("count > 1")
    largest_difference = (twice["max"] - twice["min"]).max()
    subject = "Update {} is" if len(twice) == 1 else "Updates {} to {} are"
    losses = "equal losses" if largest_difference == 0 else f"losses that differ by {largest_difference:.1g}"
    title = f"{subject.format(twice.index.min(), twice.index.max())} logged twice, with {losses}"
    title = title if len(twice) else f"{format_counted(len(by_attempt), 'attempt')} in one log"
    return add_title(figure, title, f"log.csv has {format_counted(len(rows), 'row')}: {attempts}.")


def show_tensorboard(folder: Path) -> bool:
    """TensorBoard below the cell, on what a run in `folder` has written for it; whether there is one.

    Only where it is installed and somebody reads along. It is a thread of this process, and ends with it.
    """
    if not settings().attended or not find_spec("tensorboard"):
        return False
    from tensorboard import notebook
    from tensorboard.program import TensorBoard

    board = TensorBoard()
    folder = str(folder / "tensorboard")
    board.configure(argv=["tensorboard", "--logdir", folder, "--port", "0", "--load_fast", "false"])
    notebook.display(urlsplit(board.launch()).port, height=500)
    return True
