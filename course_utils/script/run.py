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
from course_utils.hardware.operators import OperatorWatch
from course_utils.memory import distinct_bytes
from course_utils.memory.planning.command import FRESH_ADDRESSES
from course_utils.memory.step.model import Source
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.allocator import allocator_of
from course_utils.models import pretrained
from course_utils.optim import schedules
from course_utils.script import rank
from course_utils.script.checkpoints import Checkpoints
from course_utils.script.engines import CLIP_TO, Engine, make_engine
from course_utils.script.examples import Examples, Order, load, tokenizer_of
from course_utils.script.expectation import Expectation
from course_utils.script.job import CHANGEABLE, BatchSplit, Job
from course_utils.script.loggers import LOGGERS, Logger
from course_utils.script.meter import RunMeter, UpdateLog
from course_utils.script.parent import end_with_parent
from course_utils.script.rank import ThisRank, find_rank
from course_utils.units import format_bytes

_AUTOCAST_DTYPES = {"autocast": torch.bfloat16, "fp16": torch.float16}
_SEED_OF_UPDATE = 2**20  # the number of the random state in which parameters are updated, above any micro-batch's
_MEASURED_UPDATE = 2  # of this process's updates, the one whose memory is measured: the state is there by then


@dataclass
class Result:
    """The result of a run. `losses` are those of this process's updates, by number; bytes and rates are as logged."""

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
        logged = []
        expected = Expectation()
        if this_rank.rank == 0:  # before the ranks meet: else the others would wait for one that cannot go on
            closing.enter_context(naming_files(job.out))
            closing.enter_context(rank.alone_in(job.out))
            logged = [*loggers, *(LOGGERS[name](job.out) for name in job.logs)]
            for logger in logged:
                closing.callback(logger.close)
            expected = Expectation.of(job, split, source, this_rank.device)
        closing.enter_context(rank.joined(this_rank))
        return TrainingLoop(job, split, this_rank, examples, source, expected, logged, say, progress).run()


def prepare(job: Job, world_size: int) -> tuple[BatchSplit, Source, Examples]:
    """Check what can be checked before ranks meet, and make the folder; returns how a batch is split, the model, its examples.

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
    """A context in which an error of a file in `folder`, or of a full disk, becomes a `CourseError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) and not str(error.filename or "").startswith(str(folder)):
            raise
        raise CourseError(
            f"{error.filename or folder} cannot be written ({error.strerror}); give another --out, or make room there."
        ) from error


class TrainingLoop:
    """Makes the updates of a job on one rank; what they need was prepared before.

    `done` counts the updates that were made; the next has the number `done + 1`, by which it is logged, shown and stored.
    """

    def __init__(
        self,
        job: Job,
        split: BatchSplit,
        this_rank: ThisRank,
        examples: Examples,
        source: Source,
        expected: Expectation,
        loggers: Sequence[Logger] = (),
        say: Callable[[str], None] = lambda _: None,
        progress: bool = False,
    ):
        self.job, self.split, self.this_rank, self.examples, self.expected = job, split, this_rank, examples, expected
        self.loggers, self.say, self.progress = loggers, say, progress
        self.device = this_rank.device
        self.order = Order(len(examples), job.batch, job.seed)
        self.engine = make_engine(job, split, self._make_model(source), self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=job.precision == "fp16")
        identity = {**job.identity, "data": examples.key}
        self.checkpoints = Checkpoints(job.out / "checkpoints", self.engine, identity, job.keep)
        self.update_log = UpdateLog(job.out) if this_rank.rank == 0 else None
        self.flops = 0
        self.peak = self.first = self.meter = self.bar = None

    def run(self) -> Result:
        """Make the updates from the newest checkpoint on to the last."""
        with self.begun() as first:
            done = first
            while done < self.job.steps:
                done = self.next(done)
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
        """Yields the number of updates made before; inside, `next` makes more."""
        self.first = self._resume()
        self.meter = RunMeter()
        from tqdm.auto import tqdm

        is_seen = self.progress and not self.this_rank.rank
        words = {"unit": "update", "leave": False, "disable": not is_seen}
        with tqdm(total=self.job.steps, initial=self.first, **words) as self.bar:
            yield self.first

    def next(self, done: int) -> int:
        """Make the update after the first `done`, log it and save it where that is due; returns its number."""
        number = done + 1
        if self.this_rank.rank == 0:
            self.update_log.note(number)
        can_measure = self.this_rank.rank == 0 and not self.job.quick and not self.engine.is_opaque
        measured = can_measure and number == self.first + _MEASURED_UPDATE
        loss, norm = self._measure_update(done) if measured else self._update(done)
        self.meter.pending[number] = loss
        self.bar.update()
        is_last = number >= self.job.steps
        if number % self.job.log_every == 0 or is_last:
            self._log_row(number, norm)
        if self.job.save_every and number % self.job.save_every == 0 and not is_last:
            self._save(number)
        return number

    def _make_model(self, source: Source) -> nn.Module:
        job = self.job
        torch.manual_seed(job.seed)  # for adapters; the weights have the settings' seed
        if job.weights:
            source = replace(source, make=partial(pretrained, source.config, job.weights))
        elif job.lora:
            self.say("The adapters are on random weights, which shows only their cost; to fine-tune, give --weights.")
        model = Workload(source, self.split.recipe).make_model().to(self.device)
        return model.double() if job.precision == "fp64" else model

    def _resume(self) -> int:
        """Load the newest checkpoint, if there is one; returns how many updates were made."""
        about = self.checkpoints.load(self.say) or {"step": 0, "more": {"flags": {}}}
        done, more = about["step"], about["more"]
        if done and self.scaler.is_enabled():
            self.scaler.load_state_dict(more["scaler"])
        for name, before in more["flags"].items():
            if (value := self._changeable_flags()[name]) != before:
                self.say(f"From here on {name.replace('_', ' ')} is {value} instead of {before}.")
        if self.update_log is not None and self.update_log.last and done < self.job.steps:
            again = _describe_updates(done + 1, self.update_log.last)
            self.say(f"Goes on after update {done}; {again} computed again.")
        return done

    def _save(self, done: int) -> None:
        self.checkpoints.save(done, {"scaler": self.scaler.state_dict(), "flags": self._changeable_flags()})

    def _changeable_flags(self) -> dict:
        """The flags that a run may change on its way, which it says."""
        return {name: getattr(self.job, name) for name in CHANGEABLE}

    def _update(self, done: int) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Make an update; returns this rank's part of the loss, and the norm of the gradients where they are clipped."""
        job, split, engine, examples = self.job, self.split, self.engine, self.examples
        rows = self.order[done]
        total = examples.weights[rows].sum().item()
        engine.model.train()
        loss = torch.zeros((), device=self.device)
        for i, mine in enumerate(split.micro_batches(rows, self.this_rank.rank)):
            self._seed(done, self.this_rank.rank * split.accumulation + i)
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
        self._seed(done, _SEED_OF_UPDATE)
        if job.clipping:
            self.scaler.unscale_(engine.optimizer)
            engine.clip(CLIP_TO)
        factor = _learning_rate_factor(job, done)
        for group in engine.optimizer.param_groups:
            group["lr"] = job.lr * factor
        engine.update(partial(self.scaler.step, engine.optimizer))
        self.scaler.update()
        return loss, engine.norm

    def _seed(self, done: int, micro: int) -> None:
        """A seed of its own for each micro-batch, the same on whatever rank it is computed; mixed by SplitMix64's constants.

        Not by `torch.manual_seed`: for each kind of device that is not in use, it stores a stack trace and never frees it.
        """
        mixed = self.job.seed * 0x9E3779B97F4A7C15 + done * 0xBF58476D1CE4E5B9 + micro * 0x94D049BB133111EB
        seed = mixed % 2**63
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _measure_update(self, done: int) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Make an update, and note the allocator's peak."""
        engine, allocator = self.engine, allocator_of(self.device)
        states = [value for _, state in engine.state() for value in state.values() if isinstance(value, torch.Tensor)]
        whole = [*engine.plain.parameters(), *engine.plain.buffers(), *states]
        resident = distinct_bytes(tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in whole)
        with allocator.recording(), allocator.measured():
            made = self._update(done)
        self.peak = resident + allocator.account().above_start
        return made

    def _watch(self) -> AbstractContextManager[OperatorWatch | None]:
        """A context that counts the operations of the first micro-batch: every other has as many."""
        is_needless = self.flops or self.job.compiled or self.this_rank.rank or self.job.quick
        return nullcontext() if is_needless else OperatorWatch()

    def _on_device(self, batch: dict) -> dict:
        return {name: v.to(self.device) if isinstance(v, torch.Tensor) else v for name, v in batch.items()}

    def _autocast(self):
        dtype = _AUTOCAST_DTYPES.get(self.job.precision)
        if dtype is None or self.engine.casts_itself:
            return nullcontext()
        return torch.autocast(self.device.type, dtype)

    def _log_row(self, number: int, norm: torch.Tensor | float) -> None:
        """Tell the loggers and the bar about the updates since the last row up to `number`; `norm` is that of its gradients."""
        job, meter = self.job, self.meter
        losses = {update: float(loss) for update, loss in meter.pending.items()}  # waits for the device
        now = time.perf_counter()
        seconds = now - meter.row_begun
        mean = rank.sum_over_ranks(sum(losses.values()) / len(losses), self.device)
        tokens = sum(self.examples.tokens[self.order[update - 1]].sum().item() for update in meter.pending)
        flops = self.flops * self.split.accumulation * len(losses) / seconds  # of this rank
        values = {
            "attempt": self.update_log.attempts if self.update_log else 0,
            "loss": mean,
            "lr": job.lr * _learning_rate_factor(job, number - 1),
            "gradient_norm": float(norm) if job.clipping else None,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "flops_per_second": flops or None,
            "utilization": flops / self.expected.flops if self.expected.flops and flops else None,
            "seconds": now - meter.begun,
        }
        for logger in self.loggers:
            logger.log(number, values)
        self.bar.set_postfix_str(f"loss {mean:.3f}, {tokens / seconds:,.0f} tokens/s")
        meter.losses |= losses
        meter.rows.append((tokens, seconds))
        meter.pending = {}
        meter.row_begun = time.perf_counter()

    def _say_end(self, result: Result) -> None:
        if result.resumed_from == result.step:
            self.say(f"All {result.step} updates are already done; increase --steps to continue.")
            return
        words = [f"{result.step} updates, {result.tokens_per_second:,.0f} tokens a second"]
        if self.peak is not None:
            beside = "" if result.predicted is None else f", predicted {format_bytes(result.predicted)}"
            words.append(f"peak of rank 0 {format_bytes(self.peak)}{beside}")
        self.say("; ".join(words) + ".")


def _learning_rate_factor(job: Job, done: int) -> float:
    """The factor on `lr` at the update after the first `done`. A warm-up of w updates begins above 0 and ends at the w-th."""
    if done < job.warmup:
        return (done + 1) / job.warmup
    return schedules.cosine(done - job.warmup, job.steps - job.warmup, floor=job.floor)


def _describe_updates(first: int, last: int) -> str:
    if last < first:
        return "none is"
    return f"update {first} is" if last == first else f"updates {first} to {last} are"
