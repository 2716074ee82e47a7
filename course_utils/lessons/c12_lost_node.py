"""Chapter 12: a run that goes on when a node is lost."""

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.lessons.c12_engines import truth_on_rank
from course_utils.lessons.shared import largest_difference
from course_utils.script import Job
from course_utils.script.agents import Agents
from course_utils.script.checkpoints import parameters_in
from course_utils.script.update_log import last_started_update
from course_utils.units import format_counted
from course_utils.viz.plots import lines
from course_utils.viz.style import COLORS


@dataclass
class DisturbedRun:
    """A run of which an agent was killed and begun again."""

    events: pd.DataFrame  # second, who, what
    progress: list[tuple[float, int]] = field(repr=False)  # the second at which an update was begun, and its number
    repeated_updates: int = 0  # that were computed twice
    difference: float = float("nan")  # the largest distance of a parameter from an undisturbed run's


def disturb(job: Job, kill_at: int, seconds: float = 120.0) -> DisturbedRun:
    """Train `job` under two agents of torchrun with a rank each; kill one when update `kill_at` is at work, begin it again.

    `kill_at` lies between the first checkpoint and the last update. Raises `CourseError` where the run ends before, takes more
    than `seconds`, or fails, and where the folder has a run already. No process is left behind.
    """
    if (job.out / "checkpoints").exists():
        raise CourseError(f"{job.out} has a run that would be taken up; give another folder as out.")
    with tempfile.TemporaryDirectory() as place, Agents(Path(place), 2, job.flags()) as agents:
        seen = _Watch(job.out, agents, seconds)
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
    return DisturbedRun(pd.DataFrame(seen.events), seen.progress, repetitions, difference)


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

    def __init__(self, out: Path, agents: Agents, seconds: float):
        self.out, self.agents, self.seconds = out, agents, seconds
        self.start = time.monotonic()
        self.events, self.progress = [], []

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
            update = last_started_update(self.out)
            if update and (not self.progress or self.progress[-1][1] != update):
                self.progress.append((second, update))
            time.sleep(0.02)


def disturbed_figure(run: DisturbedRun) -> tuple[Figure, str]:
    """Which update was at work when; an agent is killed, and later all go on from the newest checkpoint."""

    def seconds_of(event: str) -> pd.Series:
        return run.events.loc[run.events["what"].str.contains(event), "second"]

    killed, on = (seconds_of(event).iloc[0] for event in ("killed", "go on"))
    before = [update for update in run.progress if update[0] <= killed]
    after = [update for update in run.progress if update[0] >= on]
    pause = after[0][0] - killed
    title = f"A killed agent costs {pause:.0f} s and {format_counted(run.repeated_updates, 'repeated update')}"
    styles = {"before": ("first", ".-"), "after": ("second", ".-")}
    x, y = "seconds since the agents were started", "update at work"
    figure, _ = lines({"before": before, "after": after}, title, x, y, styles=styles, labels="none")
    (axes,) = figure.axes
    axes.axvspan(killed, after[0][0], color=COLORS["grid"], zorder=0)
    marks = {
        "killed": ("agent 1\nis killed ", "right"),
        "starts again": (" it starts\n again", "left"),
        "go on": ("updates\ngo on ", "right"),
    }
    for event, (text, side) in marks.items():
        axes.vlines(seconds_of(event), 0, after[-1][1], color=COLORS["ink"], linestyle=":", linewidth=1.2)
        for place in seconds_of(event):
            axes.text(place, 1.02 * after[-1][1], text, ha=side, fontsize=9)
    axes.set(xlim=(0, None), ylim=(0, 1.25 * after[-1][1]))
    events = "; ".join(f"{row.second:.1f} s: {row.who} {row.what}" for row in run.events.itertuples())
    return figure, f"{title}. {events}."
