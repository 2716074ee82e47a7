"""Chapter 12: engines of the same training beside each other, and a run that goes on when a node is lost."""

import logging
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from course_utils import data, models, training
from course_utils.data.batching import EpochSampler
from course_utils.distributed import Traffic, counted, launch
from course_utils.distributed.torchrun import announce
from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.lessons.shared import inner_optimizer, largest_difference, local_part
from course_utils.memory import distinct_bytes
from course_utils.script import Job
from course_utils.script.agents import Agents
from course_utils.script.checkpoints import parameters_in
from course_utils.script.examples import Order, load
from course_utils.script.expectation import Expectation
from course_utils.script.meter import last_update_begun
from course_utils.script.optimizers import make_optimizer
from course_utils.script.rank import this_rank
from course_utils.script.run import TrainingLoop
from course_utils.settings import set_variable, settings
from course_utils.training import History
from course_utils.training.profile import ELSEWHERE, LOADING, Profile, Trace, throughput
from course_utils.units import format_counted
from course_utils.viz.plots import legend, lines, panels, together
from course_utils.viz.style import COLORS

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "max_position_embeddings": 64,
}


def small_job(folder: Path, **fields) -> Job:
    """A run of `course train`: a small Llama, written to `folder`, on a text of functions; `fields` are more of its flags."""
    config = folder / "config.json"
    config.write_text(models.configuration("llama", **_SIZES).to_json_string(), encoding="utf-8")
    text = folder / "text.txt"
    text.write_text("\n\n".join(data.load_functions()["validation"]["text"][:60]), encoding="utf-8")
    defaults = {"batch": 12, "micro_batch": 3, "sequence": 24, "quick": True, "log_every": 1000, "out": folder / "run"}
    return Job(model=str(config), data=text, **defaults | fields)


# The same updates by every engine.

COUNTED = 2
"""The update, counted from 0, whose bytes are counted: the state is there, and no checkpoint is written."""


@dataclass
class EngineMeasurement:
    """What one rank saw of an engine."""

    wrapper: str  # the model's class
    sent: int  # bytes, in an update
    parameters: int  # bytes, kept
    state: int  # bytes, kept
    full: dict[str, torch.Tensor] = field(repr=False)  # parameters at the end


def by_flags_on_rank(job: Job) -> EngineMeasurement:
    """To be launched: what `course train` does with these flags, its update `COUNTED` with what it sends counted."""
    set_variable("COURSE_DEVICE", "cpu")  # also where a GPU is, which two ranks would have to share
    settings.cache_clear()
    _silence()
    job.out.mkdir(exist_ok=True)
    source, examples = load(job)
    here = this_rank()
    run = TrainingLoop(job, job.split(here.world_size), here, examples, source, Expectation())
    sent = None
    with run.begun() as step:
        while step < job.steps:
            with _count_one(step) as traffic:
                step = run.next(step)
            sent = traffic or sent
    engine = run.engine
    return _record_rank(engine.model, engine.plain, inner_optimizer(engine.optimizer), sent)


def _record_rank(
    wrapper: nn.Module, plain: nn.Module, optimizer: torch.optim.Optimizer, sent: Traffic
) -> EngineMeasurement:
    """Bytes by memory, each once: an engine may keep a copy of its share in the optimizer."""
    own = [getattr(p, "ds_tensor", p) for p in plain.parameters()]
    copies = [p for group in optimizer.param_groups for p in group["params"]]
    state = [v for values in optimizer.state.values() for v in values.values() if torch.is_tensor(v) and v.dim()]
    parameters, state_bytes = (distinct_bytes(map(local_part, tensors)) for tensors in ([*own, *copies], state))
    return EngineMeasurement(type(wrapper).__name__, sent.sent, parameters, state_bytes, _gather_full(plain))


def _gather_full(plain: nn.Module) -> dict[str, torch.Tensor]:
    """Whole parameters by name, wherever their parts are."""
    gathered = nullcontext()
    if any(hasattr(p, "ds_tensor") for p in plain.parameters()):
        import deepspeed

        gathered = deepspeed.zero.GatheredParameters(list(plain.parameters()))
    with gathered:
        parts = {name: p.detach() for name, p in plain.named_parameters()}
        return {name: (p.full_tensor() if hasattr(p, "full_tensor") else p).clone() for name, p in parts.items()}


def by_accelerate_on_rank(job: Job) -> EngineMeasurement:
    """To be launched: the same updates with Accelerate, which wraps, accumulates and divides by the number of micro-batches."""
    announce()
    from accelerate import Accelerator

    plain, plain_optimizer, updates = _prepare_loop(job)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=len(updates[0]))
    model, optimizer = accelerator.prepare(plain, plain_optimizer)

    def perform(update: list) -> None:
        for batch, weight in update:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss * weight * len(update))
                optimizer.step()
                optimizer.zero_grad()

    return _record_rank(model, plain, plain_optimizer, _count_sent(perform, updates))


def by_fabric_on_rank(job: Job) -> EngineMeasurement:
    """To be launched: the same updates with Lightning Fabric, which wraps; the loop says when gradients travel, and divides."""
    announce()
    _silence()
    from lightning import Fabric

    fabric = Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    plain, plain_optimizer, updates = _prepare_loop(job)
    model, optimizer = fabric.setup(plain, plain_optimizer)

    def perform(update: list) -> None:
        for batch, weight in update:
            with fabric.no_backward_sync(model, enabled=batch is not update[-1][0]):
                fabric.backward(model(**batch).loss * weight)
        optimizer.step()
        optimizer.zero_grad()

    return _record_rank(model, plain, plain_optimizer, _count_sent(perform, updates))


def by_lightning_trainer_on_rank(job: Job) -> EngineMeasurement:
    """To be launched: the same updates with Lightning's Trainer, which has the loop too."""
    announce()
    _silence()
    from lightning import LightningModule, Trainer

    plain, plain_optimizer, updates = _prepare_loop(job)
    micro_batches = len(updates[0])
    counting = ExitStack()
    traffic = []

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.plain = plain

        def training_step(self, rows: tuple[dict, float], index: int):
            batch, weight = rows
            return self.plain(**batch).loss * weight * micro_batches

        def configure_optimizers(self):
            return plain_optimizer

        def on_train_batch_start(self, rows: tuple[dict, float], index: int):
            if index == COUNTED * micro_batches:
                traffic.append(counting.enter_context(counted()))

        def on_train_batch_end(self, outputs: object, rows: tuple[dict, float], index: int):
            if index == (COUNTED + 1) * micro_batches - 1:
                counting.close()

    options = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options |= {"accumulate_grad_batches": micro_batches, "use_distributed_sampler": False}
    trainer = Trainer(accelerator="cpu", devices=dist.get_world_size(), max_epochs=1, **options)
    trainer.fit(Module(), DataLoader([rows for update in updates for rows in update], batch_size=None))
    return _record_rank(trainer.strategy.model, plain, plain_optimizer, *traffic)


def _prepare_loop(job: Job) -> tuple[nn.Module, torch.optim.Optimizer, list[list[tuple[dict, float]]]]:
    """Model and optimizer as `course train` makes them; for each update this rank's micro-batches with their weights.

    A weight is that of a micro-batch's loss in a sum over the micro-batches, of which the mean over ranks is taken.
    """
    source, examples = load(job)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    split = job.split(ranks)
    order = Order(len(examples), job.batch, job.seed)
    updates = []
    for step in range(job.steps):
        parts = split.micro_batches(order[step], rank)
        total = examples.weights[order[step]].sum().item() / ranks
        updates.append([(examples[rows], examples.weights[rows].sum().item() / total) for rows in parts])
    model = source.make().train()
    return model, make_optimizer(job.optimizer, model, job.lr, job.options), updates


def _count_sent(perform: Callable[[list], None], updates: Sequence[list]) -> Traffic:
    """Make all updates; what this rank sent in update `COUNTED`."""
    by_update = []
    for number, update in enumerate(updates):
        with _count_one(number) as traffic:
            perform(update)
        by_update.append(traffic)
    return by_update[COUNTED]


def _count_one(number: int) -> AbstractContextManager[Traffic | None]:
    """Counts what this rank sends, in update `COUNTED` alone."""
    return counted() if number == COUNTED else nullcontext()


def _silence() -> None:
    """Silences the logs and warnings of libraries on a rank."""
    logging.disable()
    warnings.simplefilter("ignore")


ENGINES: dict[str, tuple[str, Callable, str]] = {
    "DDP": ("torch", by_flags_on_rank, "ddp"),
    "ZeroRedundancyOptimizer": ("torch", by_flags_on_rank, "zero1"),
    "FSDP2": ("torch", by_flags_on_rank, "fsdp2"),
    **{f"DeepSpeed {stage}": ("deepspeed", by_flags_on_rank, f"deepspeed-{stage}") for stage in (1, 2, 3)},
    "Accelerate": ("accelerate", by_accelerate_on_rank, "ddp"),
    "Lightning Fabric": ("lightning", by_fabric_on_rank, "ddp"),
    "Lightning Trainer": ("lightning", by_lightning_trainer_on_rank, "ddp"),
}
"""The package of each engine, what a rank does, and the strategy."""
ROLES = {
    "DDP": ("you", "nobody", "you: no_sync", "you"),
    "ZeroRedundancyOptimizer": ("you", "the optimizer: state", "you: no_sync", "you, consolidated first"),
    "FSDP2": ("you, each block", "FSDP2: all", "you", "you, by DCP"),
    "DeepSpeed 1": ("initialize()", "the engine: state", "the engine", "the engine"),
    "DeepSpeed 2": ("initialize()", "the engine: gradients too", "the engine", "the engine"),
    "DeepSpeed 3": ("initialize()", "the engine: all", "the engine", "the engine"),
    "Accelerate": ("prepare()", "its plug-ins", "accumulate()", "save_state()"),
    "Lightning Fabric": ("setup()", "its strategy", "you: no_backward_sync", "you: save()"),
    "Lightning Trainer": ("Trainer", "its strategy", "Trainer", "Trainer"),
}
"""Who wraps the model with each engine, who shards it, who accumulates gradients, who saves."""


def train_all(job: Job) -> dict[str, list[EngineMeasurement]]:
    """What the two ranks of each installed engine saw of the updates of `job`; a library's engines share a launch."""
    seen = {}
    for package in dict.fromkeys(package for package, *_ in ENGINES.values()):
        names = [name for name, (own, *_) in ENGINES.items() if own == package]
        if find_spec(package):
            by_rank = launch(_train_on_rank, 2, names, job, seconds=400)
            seen |= {name: [rank[name] for rank in by_rank] for name in names}
    return seen


def _train_on_rank(names: Sequence[str], job: Job) -> dict[str, EngineMeasurement]:
    """To be launched: the updates by each of these engines, in a folder of its own."""
    trained = {}
    for name in names:
        _, work, strategy = ENGINES[name]
        trained[name] = work(replace(job, strategy=strategy, out=job.out.with_name(strategy)))
    return trained


def truth_on_rank(job: Job) -> dict[str, torch.Tensor]:
    """To be launched on one rank: the parameters where one process has all examples."""
    return by_flags_on_rank(replace(job, strategy="none", out=job.out.with_name("none"))).full


def compare(seen: Mapping[str, Sequence[EngineMeasurement]], expected: dict[str, torch.Tensor]) -> pd.DataFrame:
    """A row for each engine: who does what; and where it was `seen` by its ranks, how far it is from the `expected` parameters.

    The last three columns are means over the ranks, in sizes of the model: bytes sent in an update, and kept.
    """
    size = sum(tensor.nbytes for tensor in expected.values())
    table = pd.DataFrame.from_dict(ROLES, orient="index", columns=["wraps", "shards", "accumulates", "saves"])
    rows = {}
    for name, ranks in seen.items():
        rows[name] = {"off by": max(largest_difference(expected, rank.full) for rank in ranks)}
        for what in ("sent", "parameters", "state"):
            rows[name][what] = sum(getattr(rank, what) for rank in ranks) / len(ranks) / size
    return table.join(pd.DataFrame.from_dict(rows, orient="index"))


# What they are silent about. Each is launched on two ranks, and trains a few weights on the rows 0 to 6.


def rows_of(numbers: int = 7) -> TensorDataset:
    """Rows of one number each, 0, 1, 2 and so on."""
    return TensorDataset(torch.arange(float(numbers)).view(-1, 1))


def accelerate_alone_on_rank() -> tuple[list[float], list[float]]:
    """To be launched: this rank's rows, and the learning rate after each update of a schedule that falls to 0 in 8."""
    announce()
    from accelerate import Accelerator

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8)
    accelerator = Accelerator(cpu=True)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, DataLoader(rows_of()))
    seen, rates = [], []
    for (row,) in loader:
        seen.append(row.item())
        accelerator.backward(model(row).sum())
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    return seen, rates


def deepspeed_alone_on_rank(stage: int, clips: bool = False, **config) -> tuple[float, float]:
    """To be launched: the norm of an update of SGD with rate 1 to 16 weights whose gradients are 1 each; 4 if nobody clips.

    With `clips` the loop calls torch's `clip_grad_norm_` before the step; the norm that it saw comes second, nan without.
    """
    announce()
    _silence()
    set_variable("DS_ACCELERATOR", "cpu")
    with redirect_stdout(StringIO()):
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled
        model = nn.Linear(4, 4, bias=False)
        nn.init.zeros_(model.weight)
        config |= {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        config["zero_allow_untested_optimizer"] = True
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.ones(1, 4)).sum())
    seen = float(nn.utils.clip_grad_norm_(engine.parameters(), 1e-3)) if clips else float("nan")
    engine.step()
    return float(_gather_full(engine.module)["weight"].norm()), seen


# A node is lost.


@dataclass
class DisturbedRun:
    """A run of which an agent was killed and begun again."""

    events: pd.DataFrame  # second, who, what
    progress: list[tuple[float, int]] = field(repr=False)  # the second at which an update was begun, and its number
    again: int = 0  # updates that were computed twice
    apart: float = float("nan")  # the largest distance of a parameter from an undisturbed run's


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
        seen.until(lambda: last_update_begun(job.out))
        seen.note("ranks", "begin update 1")
        seen.until(lambda: last_update_begun(job.out) >= kill_at)
        seen.note("agent 1", "is killed, and its rank")
        agents.kill(1)
        agents.start(1)
        seen.note("agent 1", "starts again")
        after, again = seen.until(lambda: resumption_in(agents.output()))
        seen.note("ranks", f"go on after update {after}")
        seen.until(lambda: agents.have_ended)
        seen.note("agents", "end, both with code 0")
    [wanted] = launch(truth_on_rank, 1, replace(job, save_every=0), seconds=seconds)
    apart = largest_difference(wanted, parameters_in(job.out))
    return DisturbedRun(pd.DataFrame(seen.events), seen.progress, again, apart)


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
        self.begun = time.monotonic()
        self.events, self.progress = [], []

    def note(self, who: str, what: str) -> None:
        self.events.append({"second": time.monotonic() - self.begun, "who": who, "what": what})

    def until(self, look: Callable[[], object]):
        """What `look` returns, as soon as it is true."""
        while True:
            over = self.agents.have_ended  # raises where one failed
            if value := look():
                return value
            now = time.monotonic() - self.begun
            if over or now > self.seconds:
                output = self.agents.output()[-1000:]
                raise CourseError(
                    f"The run {'ended too early' if over else 'was not done'} after {now:.0f} s; it said: {output}"
                )
            update = last_update_begun(self.out)
            if update and (not self.progress or self.progress[-1][1] != update):
                self.progress.append((now, update))
            time.sleep(0.02)


def disturbed_figure(run: DisturbedRun) -> tuple[Figure, str]:
    """Which update was at work when; an agent is killed, and later all go on from the newest checkpoint."""

    def seconds_of(what: str) -> pd.Series:
        return run.events.loc[run.events["what"].str.contains(what), "second"]

    killed, on = (seconds_of(what).iloc[0] for what in ("killed", "go on"))
    before = [begun for begun in run.progress if begun[0] <= killed]
    after = [begun for begun in run.progress if begun[0] >= on]
    lost = after[0][0] - killed
    title = f"A killed agent costs {lost:.0f} s and {format_counted(run.again, 'repeated update')}"
    looks = {"before": ("first", ".-"), "after": ("second", ".-")}
    data = {"before": before, "after": after}
    x = "seconds since the agents were started"
    figure, _ = lines(data, title, x, "update at work", looks=looks, labels="none")
    (axes,) = figure.axes
    axes.axvspan(killed, after[0][0], color=COLORS["grid"], zorder=0)
    marks = {
        "killed": ("agent 1\nis killed ", "right"),
        "starts again": (" it starts\n again", "left"),
        "go on": ("updates\ngo on ", "right"),
    }
    for what, (words, side) in marks.items():
        axes.vlines(seconds_of(what), 0, after[-1][1], color=COLORS["ink"], linestyle=":", linewidth=1.2)
        for place in seconds_of(what):
            axes.text(place, 1.02 * after[-1][1], words, ha=side, fontsize=9)
    axes.set(xlim=(0, None), ylim=(0, 1.25 * after[-1][1]))
    events = "; ".join(f"{row.second:.1f} s: {row.who} {row.what}" for row in run.events.itertuples())
    return figure, f"{title}. {events}."


# What a run says of itself.


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
    used = throughput(history, machine)
    waits = {where: gaps.loc[gaps["where"] == where, "seconds"].sum() / trace.end for where in (LOADING, ELSEWHERE)}
    operators = trace.operator_seconds()["seconds"]
    first, share = operators.index[0], operators.iloc[0] / operators.sum()
    loading, between = waits[LOADING], waits[ELSEWHERE]
    reached = used.utilization
    questions = {
        "Does the model wait for its data?": (f"{loading:.0%} of the time", loading > 0.1, "more num_workers"),
        "And for Python between updates?": (f"{between:.0%} of the time", between > 0.1, "callbacks, logs"),
        "Which share of the best rate?": (f"{reached:.1%}", reached < 0.5, "larger matrices, fewer operators"),
        "Which operator takes longest?": (f"{first.removeprefix('aten::')}, {share:.0%}", share > 0.5, "that operator"),
    }
    rows = {
        question: (measured, f"look at: {where}" if suspicious else "fine")
        for question, (measured, suspicious, where) in questions.items()
    }
    rate = used.tokens_per_second
    rows["How many tokens a second?"] = f"{rate:,.0f}", f"at the best rate {rate / reached:,.0f}"
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["measured", "verdict"])
    return table.rename_axis("question")


def logs() -> tuple[str, ...]:
    """What a run can log to here: TensorBoard too, where it is installed."""
    return ("csv", "tensorboard") if find_spec("tensorboard") else ("csv",)


def log_figure(folder: Path) -> tuple[Figure, str]:
    """The `log.csv` of a run: its loss and its tokens a second, each attempt for itself."""
    rows = pd.read_csv(folder / "log.csv")
    by_attempt = {f"attempt {attempt}": own.set_index("step") for attempt, own in rows.groupby("attempt")}
    figure, (left, right) = panels(1, 2, height=3.1)
    for axes, column, y in ((left, "loss", "loss"), (right, "tokens_per_second", "tokens a second")):
        data = {name: own[column] for name, own in by_attempt.items()}
        lines(data, "", "update", y, labels="none", axes=axes)
        axes.lines[-1].set(marker=".")
        axes.lines[0].set(marker="o", markersize=8, markerfacecolor="none", zorder=3)
    right.set_ylim(0, None)
    legend(right)
    attempts = "; ".join(
        f"{name}, updates {own.index.min()} to {own.index.max()}, loss {own['loss'].iloc[-1]:.2f}"
        for name, own in by_attempt.items()
    )
    twice = rows.groupby("step")["loss"].agg(["count", "max", "min"]).query("count > 1")
    apart = (twice["max"] - twice["min"]).max()
    again = "Update {} is" if len(twice) == 1 else "Updates {} to {} are"
    losses = "equal losses" if apart == 0 else f"losses that differ by {apart:.1g}"
    title = f"{again.format(twice.index.min(), twice.index.max())} logged twice, with {losses}"
    title = title if len(twice) else f"{format_counted(len(by_attempt), 'attempt')} in one log"
    return together(figure, title, f"log.csv has {format_counted(len(rows), 'row')}: {attempts}.")


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
