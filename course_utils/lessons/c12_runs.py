"""Chapter 12: a run that goes on when a node is lost; and what a run says of itself: where its time goes, and its log."""

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
from torch.utils.data import DataLoader

from course_utils import training
from course_utils.data.batching import EpochSampler
from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.lessons.c12_engines import truth_on_rank
from course_utils.lessons.shared import largest_difference
from course_utils.script import Job
from course_utils.script.agents import Agents
from course_utils.script.checkpoints import parameters_in
from course_utils.script.examples import load_examples
from course_utils.script.optimizers import make_optimizer
from course_utils.script.update_log import last_started_update
from course_utils.settings import settings
from course_utils.training import History
from course_utils.training.profile import ELSEWHERE, LOADING, Profile, Trace, throughput


@dataclass
class DisturbedRun:
    """A run of which an agent was killed and begun again."""

    events: pd.DataFrame  # second, who, what
    repeated_updates: int  # that were computed twice
    difference: float  # the largest distance of a parameter from an undisturbed run's


def disturb(job: Job, kill_at: int, seconds: float = 120.0) -> DisturbedRun:
    """Train `job` under two agents of torchrun with a rank each; kill one when update `kill_at` is at work, begin it again.

    `kill_at` lies between the first checkpoint and the last update. Raises `CourseError` where the run ends before, takes more
    than `seconds`, or fails, and where the folder has a run already. No process is left behind.
    """
    if (job.out / "checkpoints").exists():
        raise CourseError(f"{job.out} has a run that would be taken up; give another folder as out.")
    with tempfile.TemporaryDirectory() as place, Agents(Path(place), 2, job.flags()) as agents:
        seen = _Watch(agents, seconds)
        for number in (0, 1):
            agents.start(number)
            seen.note(f"agent {number}", "starts")
        seen.until(lambda: last_started_update(job.out))
        seen.note("ranks", "begin update 1")
        seen.until(lambda: last_started_update(job.out) >= kill_at)
        seen.note("agent 1", "is killed, and its rank")
        agents.kill(1)
        agents.start(1)
        seen.note("agent 1", "starts again")
        after, repetitions = seen.until(lambda: resumption_in(agents.output()))
        seen.note("ranks", f"go on after update {after}")
        seen.until(lambda: agents.have_ended)
        seen.note("agents", "end, both with code 0")
    [expected] = launch(truth_on_rank, 1, replace(job, save_every=0), seconds=seconds)
    difference = largest_difference(expected, parameters_in(job.out))
    return DisturbedRun(pd.DataFrame(seen.events), repetitions, difference)


_RESUMPTION = re.compile(r"Goes on after update (\d+); (?:updates? )?(\w+)(?: to (\d+))? (?:is|are) computed again")


def resumption_in(output: str) -> tuple[int, int] | None:
    """The update after which `course train` says that it goes on, and how many are computed again; or None."""
    line = _RESUMPTION.search(output)
    if line is None:
        return None
    after, first, last = line.groups()
    return int(after), 0 if first == "none" else int(last or first) - int(first) + 1


class _Watch:
    """Looks at a run again and again, and notes when what came."""

    def __init__(self, agents: Agents, seconds: float):
        self.agents, self.seconds = agents, seconds
        self.start = time.monotonic()
        self.events = []

    def note(self, who: str, event: str) -> None:
        self.events.append({"second": time.monotonic() - self.start, "who": who, "what": event})

    def until(self, find: Callable[[], object]):
        """Waits until what `find` returns is true, and returns it."""
        while True:
            has_ended = self.agents.have_ended  # raises where one failed
            if value := find():
                return value
            second = time.monotonic() - self.start
            if has_ended or second > self.seconds:
                output = self.agents.output()[-1000:]
                problem = "ended too early" if has_ended else "was not done"
                raise CourseError(f"The run {problem} after {second:.0f} s; it said: {output}")
            time.sleep(0.02)


# Watching a run.


def profile_job(job: Job, steps: int = 4) -> tuple[Trace, History]:
    """What ran when in `steps` updates in this process, and the history of two more that nobody profiles."""
    source, examples = load_examples(job)
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
