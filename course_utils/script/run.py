"""The loop of `course train`. What an update computes depends on the seed and its number alone, so any process can take it up."""

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from course_utils.errors import CourseError, require_count
from course_utils.files import read_json, write_json
from course_utils.hardware import calibrate
from course_utils.hardware.operators import OperatorWatch
from course_utils.memory import distinct_bytes, estimate
from course_utils.memory.planning.command import FRESH_ADDRESSES
from course_utils.memory.step.model import Source
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.allocator import allocator_of
from course_utils.models import pretrained
from course_utils.optim import schedules
from course_utils.script import rank
from course_utils.script.checkpoints import Checkpoints
from course_utils.script.engines import Ddp, Engine, Fsdp2, Zero1
from course_utils.script.examples import Examples, Order, load, tokenizer_of
from course_utils.script.job import FREE, SHARDED, BatchSplit, Job
from course_utils.script.loggers import LOGGERS, Logger
from course_utils.script.optimizers import make_optimizer
from course_utils.script.parent import end_with_parent
from course_utils.script.rank import ThisRank
from course_utils.units import format_bytes

_HALVES = {"autocast": torch.bfloat16, "fp16": torch.float16}
_SEED_OF_UPDATE = 2**20  # the number of the random state in which parameters are updated, above any micro-batch's
_CLIP_TO = 1.0  # the norm of the gradients
_MEASURED_UPDATE = 2  # the update, of those of this process, whose memory is measured: the state is there by then


@dataclass
class Result:
    """What a run came to. `losses` by update, of those that this process took part in; bytes and rates as logged."""

    step: int
    resumed_from: int
    losses: dict[int, float]
    peak: int | None
    predicted: int | None
    tokens_per_second: float
    engine: Engine = field(repr=False)


def train(
    job: Job, loggers: Sequence[Logger] = (), say: Callable[[str], None] = print, progress: bool = False
) -> Result:
    """Train as `job` says, on from the newest checkpoint in its folder; returns when the last update is made and saved.

    Alone, as a rank that torchrun announces, or in a process group that stands. `loggers` come on top of those that the job
    names. Raises `CourseError` for what cannot be trained; for files that cannot be written on rank 0 alone.
    """
    here = rank.this_rank()
    if here.device.type == "cuda" and here.local_rank >= torch.cuda.device_count():
        raise CourseError(
            f"Rank {here.rank} would use GPU {here.local_rank}, but this machine has {torch.cuda.device_count()}; start fewer "
            "ranks."
        )
    if here.agent:
        end_with_parent()
    say = say if here.rank == 0 else lambda _: None
    if here.stale:
        [(name, value)] = FRESH_ADDRESSES.items()
        say(f"Restarted ranks will look for those that have ended; set {name}={value} for torchrun.")
    split, source, examples = prepare(job, here.world_size)
    if job.data and not job.tokenizer and tokenizer_of(job) == "bytes":
        say("Tokens are bytes; --tokenizer names a tokenizer, and --weights brings its own.")
    with ExitStack() as closing:
        logged, expected = [], Expectation()
        if here.rank == 0:  # before the ranks meet: else the others would wait for one that cannot go on
            closing.enter_context(naming_files(job.out))
            closing.enter_context(rank.alone_in(job.out))
            logged = [*loggers, *(LOGGERS[name](job.out) for name in job.logs)]
            for logger in logged:
                closing.callback(logger.close)
            expected = Expectation.of(job, split, source, here.device)
        closing.enter_context(rank.joined(here))
        shown = {"loggers": logged, "say": say, "progress": progress}
        return TrainingLoop(job, split, here, examples, source, expected, **shown).run()


def prepare(job: Job, world_size: int) -> tuple[BatchSplit, Source, Examples]:
    """All that can be looked at before ranks meet: how a batch is split, the model, its examples, and the folder, which is made.

    Raises `CourseError`.
    """
    require_count("--ranks", world_size)
    split = job.split(world_size)
    source, examples = load(job)
    Order(len(examples), job.batch, job.seed)
    with naming_files(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
        (job.out / "lock").touch()
    return split, source, examples


@contextmanager
def naming_files(folder: Path) -> Iterator[None]:
    """Errors of files in `folder`, and of a disk that is full, as one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) and not str(error.filename or "").startswith(str(folder)):
            raise
        raise CourseError(
            f"{error.filename or folder} cannot be written ({error.strerror}); give another --out, or make room there."
        ) from error


@dataclass
class Expectation:
    """What is worked out before the ranks meet: the predicted peak, and what this machine can compute in a second."""

    peak: int | None = None
    flops: float | None = None

    @classmethod
    def of(cls, job: Job, split: BatchSplit, source: Source, device: torch.device) -> "Expectation":
        path = job.out / "known.json"
        if job.quick:
            return cls()
        key = f"{split.recipe} of {source.key} in {job.precision} on {device.type}, {torch.get_num_threads()} threads"
        stored = read_json(path) or {}
        if stored.get("asked") == key:
            return cls(stored["peak"], stored["flops"])
        peak = estimate(source, split.recipe).peak if split.is_predictable else None
        name = "bfloat16" if job.precision in ("bf16", "autocast", "fp16") else "float32"
        flops = None if job.precision == "fp64" else calibrate([name], exchange=False).flops[name]
        expected = cls(peak, flops)
        write_json(path, {"asked": key, **vars(expected)})
        return expected


class TrainingLoop:
    """The updates of a job as one rank makes them, each a step; what is needed was prepared before."""

    def __init__(
        self,
        job: Job,
        split: BatchSplit,
        here: ThisRank,
        examples: Examples,
        source: Source,
        expected: Expectation,
        loggers: Sequence[Logger] = (),
        say: Callable[[str], None] = lambda _: None,
        progress: bool = False,
    ):
        self.job, self.split, self.here, self.examples, self.expected = job, split, here, examples, expected
        self.loggers, self.say, self.progress = loggers, say, progress
        self.device = here.device
        self.order = Order(len(examples), job.batch, job.seed)
        self.engine = self._make_engine(self._make_model(source))
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=job.precision == "fp16")
        identity = {**job.identity, "data": examples.key}
        self.checkpoints = Checkpoints(job.out / "checkpoints", self.engine, identity, job.keep)
        self.update_log = _UpdateLog(job.out / "reached") if here.rank == 0 else None
        self.flops, self.peak = 0, None

    def run(self) -> Result:
        """From where the newest checkpoint stands to the end."""
        with self.begun() as first:
            step = first
            while step < self.job.steps:
                step = self.next(step)
            if first < self.job.steps:
                self._save(self.job.steps)
        result = Result(
            step=max(first, self.job.steps),
            resumed_from=first,
            losses=self.meter.losses,
            peak=self.peak,
            predicted=self.expected.peak,
            tokens_per_second=self.meter.rate,
            engine=self.engine,
        )
        self._say_end(result)
        return result

    @contextmanager
    def begun(self) -> Iterator[int]:
        """Yields how many updates have been made; inside, `next` makes more."""
        self.first = self._resume()
        self.meter = _Meter()
        from tqdm.auto import tqdm

        is_seen = self.progress and not self.here.rank
        words = {"unit": "update", "leave": False, "disable": not is_seen}
        with tqdm(total=self.job.steps, initial=self.first, **words) as self.bar:
            yield self.first

    def next(self, step: int) -> int:
        """The update after update `step`, with all that goes with it; returns its number."""
        if self.here.rank == 0:
            self.update_log.note(step + 1)
        can_measure = self.here.rank == 0 and not self.job.quick and not self.engine.opaque
        measured = can_measure and step == self.first + _MEASURED_UPDATE - 1
        loss, norm = self._measure_update(step) if measured else self._update(step)
        self.meter.pending[step] = loss
        self.bar.update()
        made, is_last = step + 1, step + 1 >= self.job.steps
        if made % self.job.log_every == 0 or is_last:
            self._log_row(step, norm)
        if self.job.save_every and made % self.job.save_every == 0 and not is_last:
            self._save(made)
        return made

    def _make_model(self, source: Source) -> nn.Module:
        job = self.job
        torch.manual_seed(job.seed)  # for adapters; the weights have the settings' seed
        if job.weights:
            source = replace(source, make=partial(pretrained, source.config, job.weights))
        elif job.lora:
            self.say("The adapters are on random weights, which shows only their cost; to fine-tune, give --weights.")
        model = Workload(source, self.split.recipe).make_model().to(self.device)
        return model.double() if job.precision == "fp64" else model

    def _make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return make_optimizer(self.job.optimizer, model, self.job.lr, self.job.options)

    def _make_engine(self, plain: nn.Module) -> Engine:
        job, make = self.job, self._make_optimizer
        if job.strategy.startswith("deepspeed"):
            from course_utils.script.deepspeed import DeepSpeed

            engine = DeepSpeed(
                plain,
                make,
                stage=int(job.strategy[-1]),
                precision=job.precision,
                micro_batch=self.split.micro_batch,
                accumulation=self.split.accumulation,
                clip_to=_CLIP_TO if job.clipping else None,
            )
        elif job.strategy in SHARDED:
            engine = Fsdp2(plain, make, device=self.device, halves=job.precision == "autocast", replicas=job.replicas)
        else:
            engine = {"none": Engine, "ddp": Ddp, "zero1": Zero1}[job.strategy](plain, make)
        if job.compiled:
            engine.model.compile()
        return engine

    def _resume(self) -> int:
        about = self.checkpoints.load(self.say) or {"step": 0, "more": {"flags": {}}}
        step, more = about["step"], about["more"]
        if step and self.scaler.is_enabled():
            self.scaler.load_state_dict(more["scaler"])
        for name, before in more["flags"].items():
            if self._flags()[name] != before:
                self.say(f"From here on {name.replace('_', ' ')} is {self._flags()[name]} instead of {before}.")
        if self.update_log is not None and self.update_log.last and step < self.job.steps:
            again = range(step + 1, self.update_log.last + 1)
            several = f"updates {step + 1} to {self.update_log.last} are" if again else "none is"
            self.say(
                f"Goes on after update {step}; {f'update {step + 1} is' if len(again) == 1 else several} computed again."
            )
        return step

    def _save(self, step: int) -> None:
        self.checkpoints.save(step, {"scaler": self.scaler.state_dict(), "flags": self._flags()})

    def _flags(self) -> dict:
        """What a run may change on its way, and says so."""
        return {name: getattr(self.job, name) for name in FREE}

    def _update(self, step: int) -> tuple[torch.Tensor, torch.Tensor | float]:
        """One update: this rank's part of the loss, and the norm of the gradients where they are clipped."""
        job, split, engine, examples = self.job, self.split, self.engine, self.examples
        rows = self.order[step]
        total = examples.weights[rows].sum().item()
        engine.model.train()
        loss = torch.zeros((), device=self.device)
        for i, mine in enumerate(split.micro_batches(rows, self.here.rank)):
            self._seed(step, self.here.rank * split.accumulation + i)
            weight = examples.weights[mine].sum().item() / total
            with engine.around(is_last=i + 1 == split.accumulation), self._watch() as watch:
                with self._autocast():
                    output = engine.model(**self._on_device(examples[mine]))
                micro_loss = (output["loss"] if isinstance(output, dict) else output.loss) * weight
                del output
                loss = loss + micro_loss.detach()
                gain = split.world_size if engine.averages else 1  # the library divides by it
                engine.backward(self.scaler.scale(micro_loss * gain))
            if watch is not None:
                self.flops = sum(operator.work.flops for operator in watch.operators)
        self._seed(step, _SEED_OF_UPDATE)
        if job.clipping:
            self.scaler.unscale_(engine.optimizer)
            engine.clip(_CLIP_TO)
        factor = _factor(job, step)
        for group in engine.optimizer.param_groups:
            group["lr"] = job.lr * factor
        engine.update(partial(self.scaler.step, engine.optimizer))
        self.scaler.update()
        return loss, engine.norm

    def _seed(self, step: int, micro: int) -> None:
        """A seed of its own for each micro-batch, the same on whatever rank it is computed.

        As `torch.manual_seed`, which notes a whole stack for each kind of device that is not in use, and never forgets it.
        """
        mixed = self.job.seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + micro * 0x94D049BB133111EB
        seed = mixed % 2**63
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _measure_update(self, step: int) -> tuple[torch.Tensor, torch.Tensor | float]:
        """One update, and the allocator's peak of it."""
        engine, allocator = self.engine, allocator_of(self.device)
        states = [value for _, state in engine.state() for value in state.values() if isinstance(value, torch.Tensor)]
        whole = [*engine.plain.parameters(), *engine.plain.buffers(), *states]
        resident = distinct_bytes(tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in whole)
        with allocator.recording(), allocator.measured():
            made = self._update(step)
        self.peak = resident + allocator.account().above_start
        return made

    def _watch(self) -> AbstractContextManager[OperatorWatch | None]:
        """Counts the operations of the first micro-batch: every other has as many."""
        is_needless = self.flops or self.job.compiled or self.here.rank or self.job.quick
        return nullcontext() if is_needless else OperatorWatch()

    def _on_device(self, batch: dict) -> dict:
        return {name: v.to(self.device) if isinstance(v, torch.Tensor) else v for name, v in batch.items()}

    def _autocast(self):
        halves = _HALVES.get(self.job.precision)
        if halves is None or self.engine.casts_itself:
            return nullcontext()
        return torch.autocast(self.device.type, halves)

    def _log_row(self, step: int, norm: torch.Tensor | float) -> None:
        """Tell the loggers and the bar about the updates since the last row; `step` is the newest, `norm` its gradients'."""
        job, meter = self.job, self.meter
        losses = {number + 1: float(loss) for number, loss in meter.pending.items()}  # waits for the device
        now = time.perf_counter()
        seconds = now - meter.row_begun
        mean = rank.sum_over_ranks(sum(losses.values()) / len(losses), self.device)
        tokens = sum(self.examples.tokens[self.order[number]].sum().item() for number in meter.pending)
        flops = self.flops * self.split.accumulation * len(losses) / seconds  # of this rank
        values = {
            "attempt": self.update_log.attempts if self.update_log else 0,
            "loss": mean,
            "lr": job.lr * _factor(job, step),
            "gradient_norm": float(norm) if job.clipping else None,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "flops_per_second": flops or None,
            "utilization": flops / self.expected.flops if self.expected.flops and flops else None,
            "seconds": now - meter.begun,
        }
        for logger in self.loggers:
            logger.log(step + 1, values)
        self.bar.set_postfix_str(f"loss {mean:.3f}, {tokens / seconds:,.0f} tokens/s")
        meter.losses |= losses
        meter.rows.append((tokens, seconds))
        meter.pending, meter.row_begun = {}, time.perf_counter()

    def _say_end(self, result: Result) -> None:
        if result.resumed_from == result.step:
            self.say(f"All {result.step} updates are already done; increase --steps to continue.")
            return
        words = [f"{result.step} updates, {result.tokens_per_second:,.0f} tokens a second"]
        if self.peak is not None:
            beside = "" if result.predicted is None else f", predicted {format_bytes(result.predicted)}"
            words.append(f"peak of rank 0 {format_bytes(self.peak)}{beside}")
        self.say("; ".join(words) + ".")


def last_update_begun(folder: Path) -> int:
    """Which update of the run in this folder was at work last, 0 before the first."""
    try:
        return int((folder / "reached").read_text(encoding="ascii").split()[0])
    except (OSError, IndexError):
        return 0


class _UpdateLog:
    """A file that tells the process that takes a run up which update was at work last, and how often it was taken up."""

    def __init__(self, path: Path):
        path.touch()
        self.file = path.open("r+", encoding="ascii")
        self.last, self.attempts = map(int, self.file.read().split() or (0, 0))
        self.attempts += 1

    def note(self, number: int) -> None:
        """Update `number` is at work; it is written down before it is computed."""
        self.file.seek(0)
        self.file.write(f"{number:>12} {self.attempts:>8}")
        self.file.flush()


class _Meter:
    """Losses of the updates so far, and tokens and seconds of the rows about them."""

    def __init__(self):
        self.begun = self.row_begun = time.perf_counter()
        self.pending: dict[int, torch.Tensor] = {}  # losses of updates about which there is no row yet
        self.losses: dict[int, float] = {}
        self.rows: list[tuple[int, float]] = []  # tokens and seconds

    @property
    def rate(self) -> float:
        """Tokens a second, without the first row, which warms up, where there are others; nan before any."""
        tokens, seconds = map(sum, zip(*(self.rows[1:] or self.rows or [(0, float("nan"))]), strict=True))
        return tokens / seconds


def _factor(job: Job, step: int) -> float:
    """Of the learning rate at an update counted from 0. A warm-up of w updates ends at the w-th, and begins above 0."""
    if step < job.warmup:
        return (step + 1) / job.warmup
    return schedules.cosine(step - job.warmup, job.steps - job.warmup, floor=job.floor)
