"""The loop of `course train`. What an update computes depends on the seed and its number alone, so any process can take it up."""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from course_utils import data
from course_utils.errors import CourseError, require_count
from course_utils.hardware.operators import OperatorWatch
from course_utils.memory import distinct_bytes
from course_utils.memory.planning.command import FRESH_ADDRESSES
from course_utils.memory.step.model import Source
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.allocator import allocator_of
from course_utils.models import load_pretrained
from course_utils.optim import schedules
from course_utils.script import rank
from course_utils.script.checkpoints import Checkpoints
from course_utils.script.engines import CLIP_TO, Engine, make_engine
from course_utils.script.examples import Examples, Order, load_examples, tokenizer_of
from course_utils.script.expectation import Expectation
from course_utils.script.job import CHANGEABLE_SETTINGS, BatchSplit, Job
from course_utils.script.loggers import LOGGERS, Logger
from course_utils.script.parent import end_with_parent
from course_utils.script.rank import ThisRank, find_rank
from course_utils.script.reporter import Reporter
from course_utils.script.update_log import UpdateLog
from course_utils.units import format_bytes

_AUTOCAST_DTYPES = {"autocast": torch.bfloat16, "fp16": torch.float16}
# The number of the random state in which parameters are updated, above any micro-batch's.
_SEED_OF_UPDATE = 2**20
# Of this process's updates, the one whose memory is measured: the state is there by then.
_MEASURED_UPDATE = 2


@dataclass
class JobResult:
    """The result of a run. `losses` are those of this process's updates, by number; bytes and rates are as logged."""

    step: int
    resumed_from: int
    losses: dict[int, float]
    peak: int | None
    predicted: int | None
    tokens_per_second: float
    engine: Engine = field(repr=False)

    def __str__(self):
        if self.resumed_from == self.step:
            return f"All {self.step} updates are already done; increase --steps to continue."
        sentence = f"{self.step} updates, {self.tokens_per_second:,.0f} tokens a second"
        if self.peak is not None:
            sentence += f"; peak of rank 0 {format_bytes(self.peak)}"
            sentence += "" if self.predicted is None else f", predicted {format_bytes(self.predicted)}"
        return sentence + "."


@dataclass(frozen=True)
class Update:
    """What an update gave: `loss` and `operations` are this rank's part, `tokens` those of all ranks, `norm` the gradients'."""

    number: int
    loss: torch.Tensor
    norm: torch.Tensor | float
    learning_rate: float
    tokens: int
    operations: int


def train(
    job: Job, loggers: Sequence[Logger] = (), say: Callable[[str], None] = print, progress: bool = False
) -> JobResult:
    """Train as `job` says, on from the newest checkpoint in its folder; returns when the last update is made and saved.

    Alone, as a rank that torchrun announces, or in a process group that stands. `loggers` come on top of those that the job
    names. Raises `CourseError` for what cannot be trained; for files that cannot be written on rank 0 alone.
    """
    this_rank = find_rank()
    if this_rank.device.type == "cuda" and this_rank.local_rank >= torch.cuda.device_count():
        raise CourseError(
            f"Rank {this_rank.rank} would use GPU {this_rank.local_rank}, but this machine has {torch.cuda.device_count()}; "
            "start fewer ranks."
        )
    if this_rank.has_agent:
        end_with_parent()
    say = say if this_rank.rank == 0 else lambda _: None
    if this_rank.has_stale_addresses:
        [(name, value)] = FRESH_ADDRESSES.items()
        say(f"Restarted ranks will look for those that have ended; set {name}={value} for torchrun.")
    split, source, examples = prepare(job, this_rank.world_size)
    if job.data and not job.tokenizer and tokenizer_of(job) == "bytes":
        say("Tokens are bytes; --tokenizer names a tokenizer, and --weights brings its own.")
    with ExitStack() as closing:
        all_loggers = []
        expected = Expectation()
        if this_rank.rank == 0:  # before the ranks meet: else the others would wait for one that cannot go on
            closing.enter_context(explain_file_errors(job.out))
            closing.enter_context(rank.lock_folder(job.out))
            all_loggers = [*loggers, *(LOGGERS[name](job.out) for name in job.logs)]
            for logger in all_loggers:
                closing.callback(logger.close)
            expected = Expectation.load_or_compute(split, source, this_rank.device)
        closing.enter_context(rank.process_group(this_rank))
        run = JobRun(split, source, examples, this_rank, say)
        reporter = Reporter(run, expected, all_loggers, progress and this_rank.rank == 0)
        with reporter.bar:
            run.train(reporter.add)
        result = JobResult(
            step=max(run.resumed_from, job.steps),
            resumed_from=run.resumed_from,
            losses=reporter.losses,
            peak=run.peak,
            predicted=expected.peak,
            tokens_per_second=reporter.tokens_per_second,
            engine=run.engine,
        )
        say(str(result))
        return result


def prepare(job: Job, world_size: int) -> tuple[BatchSplit, Source, Examples]:
    """Check a job before its ranks meet, and make its folder; returns its split, model and examples. Raises `CourseError`."""
    require_count("--ranks", world_size)
    split = BatchSplit(job, world_size)
    source, examples = load_examples(job)
    Order(len(examples), job.batch, job.seed)
    with explain_file_errors(job.out):
        job.out.mkdir(parents=True, exist_ok=True)
        (job.out / "lock").touch()
    return split, source, examples


@contextmanager
def explain_file_errors(folder: Path) -> Iterator[None]:
    """A context in which an error of a file in `folder`, or of a full disk, becomes a `CourseError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) and not str(error.filename or "").startswith(str(folder)):
            raise
        raise CourseError(
            f"{error.filename or folder} cannot be written ({error.strerror}); give another --out, or make room there."
        ) from error


class JobRun:
    """Trains a job on one rank from the newest checkpoint on, with what `prepare` returned.

    Updates are counted from 1. `resumed_from` is the number of the last one before this process, 0 for none; `peak` the bytes
    of the update whose memory is measured, None before it and where none is.
    """

    def __init__(
        self,
        split: BatchSplit,
        source: Source,
        examples: Examples,
        this_rank: ThisRank,
        say: Callable[[str], None] = lambda _: None,
    ):
        job = split.job
        self.job, self.split, self.this_rank, self.examples, self.say = job, split, this_rank, examples, say
        self.changeable_flags = {name: getattr(job, name) for name in CHANGEABLE_SETTINGS}
        self.device = this_rank.device
        self.order = Order(len(examples), job.batch, job.seed)
        self.engine = make_engine(split, self._make_model(source), self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=job.precision == "fp16")
        identity = {**job.identity, "data": examples.key}
        self.checkpoints = Checkpoints(job.out / "checkpoints", self.engine, identity, job.keep)
        self.update_log = UpdateLog(job.out) if this_rank.rank == 0 else None
        self.micro_batch_operations = 0
        self.peak: int | None = None
        self.resumed_from = self._resume()

    def train(self, report: Callable[[Update], None]) -> None:
        """Make all updates that are left, and save the run where that is due and at the end; `report` gets each update."""
        for number in range(self.resumed_from + 1, self.job.steps + 1):
            report(self.make_update(number))
            is_due = self.job.save_every and number % self.job.save_every == 0
            if is_due or number == self.job.steps:
                extras = {"scaler": self.scaler.state_dict(), "flags": self.changeable_flags}
                self.checkpoints.save(number, extras)

    def make_update(self, number: int) -> Update:
        """Make update `number`, which must be the next; the memory of one is measured on rank 0."""
        if self.update_log is not None:
            self.update_log.note(number)
        can_measure = self.this_rank.rank == 0 and not self.job.quick and not self.engine.is_opaque
        is_measured = can_measure and number == self.resumed_from + _MEASURED_UPDATE
        with self._measure_peak() if is_measured else nullcontext():
            return self._update(number)

    def _make_model(self, source: Source) -> nn.Module:
        job = self.job
        torch.manual_seed(job.seed)  # for adapters; the weights have the settings' seed
        if job.weights:
            source = replace(source, make=partial(load_pretrained, source.config, job.weights))
        elif job.lora:
            self.say("The adapters are on random weights, which shows only their cost; to fine-tune, give --weights.")
        model = Workload(source, self.split.recipe).make_model().to(self.device)
        return model.double() if job.precision == "fp64" else model

    def _resume(self) -> int:
        """Load the newest checkpoint, if there is one; returns the number of its last update."""
        manifest = self.checkpoints.load(self.say)
        last = 0
        if manifest is not None:
            last = manifest["step"]
            extras = manifest["extras"]
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(extras["scaler"])
            for name, before in extras["flags"].items():
                if (value := self.changeable_flags[name]) != before:
                    self.say(f"From here on {name.replace('_', ' ')} is {value} instead of {before}.")
        if self.update_log is not None and self.update_log.last and last < self.job.steps:
            updates = _describe_updates(last + 1, self.update_log.last)
            self.say(f"Goes on after update {last}; {updates} computed again.")
        return last

    def _update(self, number: int) -> Update:
        job, engine = self.job, self.engine
        rows = self.order[number - 1]
        engine.model.train()
        loss = self._add_gradients(number, rows)
        self._seed(number, _SEED_OF_UPDATE)
        if job.clipping:
            self.scaler.unscale_(engine.optimizer)
            engine.clip(CLIP_TO)
        learning_rate = job.lr * _learning_rate_factor(job, number)
        for group in engine.optimizer.param_groups:
            group["lr"] = learning_rate
        engine.update(partial(self.scaler.step, engine.optimizer))
        self.scaler.update()
        tokens = self.examples.tokens[rows].sum().item()
        operations = self.micro_batch_operations * self.split.accumulation
        return Update(number, loss, engine.norm, learning_rate, tokens, operations)

    def _add_gradients(self, number: int, rows: list[int]) -> torch.Tensor:
        """Compute the gradients of an update, one micro-batch after the other; returns this rank's part of its loss."""
        split, engine, examples = self.split, self.engine, self.examples
        total = examples.weights[rows].sum().item()
        loss = torch.zeros((), device=self.device)
        for i, micro_batch in enumerate(split.micro_batches(rows, self.this_rank.rank)):
            self._seed(number, self.this_rank.rank * split.accumulation + i)
            weight = examples.weights[micro_batch].sum().item() / total
            with engine.micro_batch_context(is_last=i + 1 == split.accumulation), self._watch() as watch:
                with self._autocast():
                    output = engine.model(**data.on_device(examples[micro_batch], self.device))
                micro_loss = (output["loss"] if isinstance(output, dict) else output.loss) * weight
                del output
                loss = loss + micro_loss.detach()
                gain = split.world_size if engine.averages else 1  # the library divides by it
                engine.backward(self.scaler.scale(micro_loss * gain))
            if watch is not None:
                self.micro_batch_operations = sum(operator.work.flops for operator in watch.operators)
        return loss

    def _seed(self, number: int, micro: int) -> None:
        """A seed of its own for each micro-batch, the same on whatever rank it is computed; mixed by SplitMix64's constants.

        Not by `torch.manual_seed`: for each kind of device that is not in use, it stores a stack trace and never frees it.
        """
        mixed = self.job.seed * 0x9E3779B97F4A7C15 + (number - 1) * 0xBF58476D1CE4E5B9 + micro * 0x94D049BB133111EB
        seed = mixed % 2**63
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    @contextmanager
    def _measure_peak(self) -> Iterator[None]:
        """A context around an update that sets `peak` to its bytes, with those that the model and its state keep."""
        engine, allocator = self.engine, allocator_of(self.device)
        states = [value for _, state in engine.state() for value in state.values() if isinstance(value, torch.Tensor)]
        tensors = [*engine.plain.parameters(), *engine.plain.buffers(), *states]
        resident = distinct_bytes(tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors)
        with allocator.recording(), allocator.measured():
            yield
        self.peak = resident + allocator.account().above_start

    def _watch(self) -> AbstractContextManager[OperatorWatch | None]:
        """A context that counts the operations of the first micro-batch: every other has as many."""
        is_needless = self.micro_batch_operations or self.job.compiled or self.this_rank.rank or self.job.quick
        return nullcontext() if is_needless else OperatorWatch()

    def _autocast(self) -> AbstractContextManager:
        dtype = None if self.engine.casts_itself else _AUTOCAST_DTYPES.get(self.job.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)


def _learning_rate_factor(job: Job, number: int) -> float:
    """The factor on `lr` at update `number`. A warm-up of w updates begins above 0 and ends at the w-th."""
    if number <= job.warmup:
        return number / job.warmup
    return schedules.cosine(number - 1 - job.warmup, job.steps - job.warmup, floor=job.floor)


def _describe_updates(first: int, last: int) -> str:
    if last < first:
        return "none is"
    return f"update {first} is" if last == first else f"updates {first} to {last} are"
