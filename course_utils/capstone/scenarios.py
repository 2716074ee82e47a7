"""Three machines and a model for each: a recipe is run dry there and weighed against budgets."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from operator import attrgetter
from threading import Lock

from course_utils import models
from course_utils.capstone.kept import BudgetLine, Choice, keep
from course_utils.capstone.layout import Layout, Sent, sent_by
from course_utils.errors import CourseError
from course_utils.hardware import A100, LINKS, Cluster, Machine, machine
from course_utils.memory.formulas.estimate import Estimate
from course_utils.memory.formulas.finder import finder_of
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.changes import CHANGES
from course_utils.memory.planning.need import FITS, Need
from course_utils.memory.step.blocks import depth_of
from course_utils.memory.step.model import Source, source_of
from course_utils.memory.step.recipe import ADAMW, Recipe, plain_recipe
from course_utils.memory.trace.log import Label, block_of
from course_utils.units import GiB, MiB, format_bytes, format_counted, format_seconds

_SMALLEST_CHUNK, _WIDEST, _NARROWEST = 256, 1024, 4  # beyond the first two a dry run takes minutes
LAPTOP = Machine(
    "the graded laptop",
    "fixed by the course, so that an answer is worth the same on every machine; of the order of two cores without AVX-512",
    8 * GiB, 20e9, {"float32": 100e9, "bfloat16": 50e9, "float16": 50e9}, 2e9, "loopback", 20e9,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scenario:
    """A model to be trained somewhere: `examples` of `sequence` tokens in every update, on `cluster` or on one `card` alone.

    `make` gives its configuration. Budgets: `memory` bytes of a card, `seconds` of an update by the makers' rates, and where
    there are several machines the bytes that may leave one (`between`). `quick` seconds and a `level` of the ladder, which an
    answer must not exceed, are what a better one reaches.
    """

    name: str
    make: Callable[[], object]
    card: Machine
    memory: int
    examples: int
    sequence: int
    seconds: float
    quick: float
    level: int
    device: str = "cuda"
    cluster: Cluster | None = None
    cards: int = 1
    between: int | None = None

    @cached_property
    def source(self) -> Source:
        """The scenario's model, as the planner reads it."""
        return source_of(self.make())


_LLAMA_30B = {
    "hidden_size": 6656, "intermediate_size": 17_920, "num_attention_heads": 52, "num_key_value_heads": 52,
    "num_hidden_layers": 60,
}  # fmt: skip
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("laptop", lambda: models.configuration("distilbert-base-cased", labels=2), LAPTOP, device="cpu",
                 memory=400 * MiB, examples=8, sequence=128, seconds=6.0, quick=4.0, level=2),
        Scenario("one card", lambda: models.configuration("llama-2-7b"), machine("RTX 4090"),
                 memory=24 * GiB, examples=4, sequence=2048, seconds=6.0, quick=3.7, level=2),
        Scenario("two machines", lambda: models.configuration("llama-7b", **_LLAMA_30B), A100,
                 memory=80 * GiB, examples=64, sequence=2048, seconds=40.0, quick=24.0, level=1,
                 cluster=Cluster(A100, LINKS["NVLink 3"], LINKS["100 Gb/s"], 4), cards=8, between=250 * GiB),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Weighed:
    """A recipe in a scenario. `need` are the bytes that a card must have at least and at most; `sent` what a card sends.
    `estimate` is of the step whose bytes are the largest."""

    scenario: Scenario
    recipe: Recipe
    layout: Layout
    estimate: Estimate = field(repr=False)
    need: Need
    trial: Trial = field(repr=False)
    sent: tuple[Sent, ...]

    @cached_property
    def parts(self) -> dict[str, float]:
        """Seconds of one update by what they go into."""
        return dict(_split_seconds(self.trial, self.layout, self.recipe, self.sent))

    @property
    def seconds(self) -> float:
        """Seconds of one update, with the communication that nothing hides."""
        return sum(self.parts.values())

    @property
    def leaving(self) -> int:
        return sum(sent.leaving for sent in self.sent)

    @property
    def fits(self) -> bool:
        """Whether the most that a card must have is there."""
        return self.need.verdict(self.scenario.memory) == FITS

    @property
    def figures(self) -> tuple[BudgetLine, ...]:
        """The predictions, each with its budget."""
        scenario = self.scenario
        rows = [
            BudgetLine("memory", scenario.memory, self.need.high, None, "bytes"),
            BudgetLine("an update", scenario.seconds, self.seconds, None, "seconds"),
        ]
        if scenario.between is not None:
            rows.append(BudgetLine("leaving a machine", scenario.between, self.leaving, None, "bytes sent"))
        return tuple(rows)

    def __str__(self):
        lines = []
        for row in self.figures:
            excess = ", too much" if row.predicted > row.budget else ""
            lines.append(f"{row.quantity:>17s}: {row.in_words(row.predicted)} of {row.in_words(row.budget)}{excess}")
        problems = [self.on_bytes(), self.on_seconds(self.scenario.seconds), self.on_bytes_between()]
        broken = [f"It {problem}." for problem in problems if problem]
        wishes = (self.on_level(), self.on_seconds(self.scenario.quick))
        better = [f"For a better mark: it {wish}." for wish in wishes if wish]
        return "\n".join([*lines, *(broken or better)])

    def on_bytes(self) -> str | None:
        """The end of a sentence on what does not fit, where and because of what; None where it fits."""
        if self.fits:
            return None
        peak, available = self.estimate.peak_instant, format_bytes(self.scenario.memory)
        kinds = sorted(peak.by_kind.items(), key=lambda kind: -kind[1])[:3]
        by_kind = ", ".join(f"{name} {format_bytes(size)}" for name, size in kinds)
        terms = ", ".join(f"{term.name} ({format_bytes(term.bytes)})" for term in peak.terms_in_bytes[:3])
        moment = f"{peak.name}, in `{peak.module}`" if peak.module else peak.name
        needs = f"needs {format_bytes(self.need.high)}, and {available} are there"
        return f"{needs}. The peak is in {moment}: {by_kind}. The largest terms: {terms}"

    def on_seconds(self, limit: float) -> str | None:
        """The same of an update that takes longer than `limit`."""
        if self.seconds <= limit:
            return None
        largest = sorted(self.parts.items(), key=lambda part: -part[1])[:2]
        terms = ", ".join(f"{name} ({format_seconds(seconds)})" for name, seconds in largest)
        phase, operator = max(self.trial.clock, key=self.trial.clock.get)
        takes = f"takes {format_seconds(self.seconds)} for an update, and {format_seconds(limit)} are allowed"
        return f"{takes}. The largest terms: {terms}; most of the computing is `{operator}` in {phase}"

    def on_bytes_between(self) -> str | None:
        """The same of too many bytes from machine to machine."""
        limit = self.scenario.between
        if limit is None or self.leaving <= limit:
            return None
        largest = max(self.sent, key=attrgetter("leaving"))
        sends = f"sends {format_bytes(self.leaving)} from machine to machine, and {format_bytes(limit)} are allowed"
        return f"{sends}. The largest term: {largest.reason} ({format_bytes(largest.leaving)})"

    def on_level(self) -> str | None:
        """The same of a field that disturbs the training more than it need."""
        levels = levels_of(self.recipe)
        worst = max(levels, key=levels.get, default=None)
        if worst is None or levels[worst] <= self.scenario.level:
            return None
        choice = f"`{worst}={getattr(self.recipe, worst)!r}` is of level {levels[worst]} on the ladder of `course plan`"
        return f"disturbs the training more than it needs to: {choice}, and level {self.scenario.level} is enough"


def choose(
    scenario: Scenario, recipe: Recipe, layout: Layout | None = None, measured: Sequence[float | None] = ()
) -> Weighed:
    """Weigh the recipe, and keep it for the report; `measured` stand beside its `figures` in their order.

    Raises `CourseError` as `weigh`, and for more measurements than figures.
    """
    weighed = weigh(scenario, recipe, layout)
    if len(measured) > len(weighed.figures):
        problem = f"There are {len(weighed.figures)} figures here, not {len(measured)}"
        raise CourseError(f"{problem}; give what was measured of each.")
    pairs = zip_longest(weighed.figures, measured)
    rows = tuple(figure._replace(measured=truth) for figure, truth in pairs)
    keep(Choice(scenario.name.replace(" ", "-"), plain_recipe(recipe), layout and vars(layout), rows))
    return weighed


def levels_of(recipe: Recipe) -> dict[str, int]:
    """The level of each field's choice on the ladder of `course plan`: 0 disturbs nothing, 3 changes what is trained."""
    return {name: _level(name, value) for name, value in plain_recipe(recipe).items()}


def _level(name: str, value: object) -> int:
    sets = [change for change in CHANGES if isinstance(change.fields, dict) and name in change.fields]
    exact = [change.level for change in sets if change.fields[name] == value]
    if exact:
        return min(exact)
    others = {"quantized": 3, "frozen": 3, "teacher": 3, "lora": 3, "galore": 2, "optimizer": 2, "precision": 1}
    return 0 if name == "optimizer" and value in ADAMW else others.get(name, 0)


def weigh(scenario: Scenario, recipe: Recipe, layout: Layout | None = None) -> Weighed:
    """Run the recipe dry in the scenario: bytes, seconds and bytes on the wire of one update.

    At most two micro-batches are run dry; each further one takes the same seconds and sends as much, and its inputs lie beside
    it. Under 1F1B the first stage of a pipeline keeps what forward saved of as many micro-batches as there are stages. `Sent`
    says what hides behind computing; the rest is waited for. Raises `CourseError` for what is not the update that is asked for.
    """
    layout = layout or Layout()
    for sentence in _faults(scenario, recipe, layout):
        raise CourseError(sentence)
    with _DRY_RUN_LOCK:
        return _weigh(scenario, recipe, layout)


_DRY_RUN_LOCK = Lock()  # a dry run patches torch for the whole process


def _faults(scenario: Scenario, recipe: Recipe, layout: Layout) -> Iterator[str]:
    """A sentence for each reason why this is another update, or one that nobody can weigh."""
    if callable(recipe.optimizer):
        yield "The optimizer is a function here; give one of the names that a Recipe knows."
    if recipe.device != scenario.device:
        yield f"This scenario runs on device={scenario.device!r}, not on {recipe.device!r}; say so in the Recipe."
    if layout.cards != scenario.cards:
        cards = format_counted(scenario.cards, "card")
        yield f"The layout {layout} has {layout.cards} cards, and this scenario {cards}; use just these."
    if recipe.ranks != layout.data:
        yield f"The layout has {layout.data} data ranks, and the recipe ranks={recipe.ranks}; set ranks={layout.data}."
    if layout.cards > layout.data and (recipe.lora or recipe.quantized or recipe.frozen or recipe.context_parallel > 1):
        yield "Tensor and pipeline ranks go with training whole weights on whole rows here; take data ranks alone."
    if layout.pipeline > 1 and recipe.zero_stage > 1:
        yield "ZeRO-2 and 3 send for every micro-batch what a pipeline has many of; take zero_stage=0 or 1 with stages."
    rows = recipe.batch * recipe.accumulation * recipe.ranks // recipe.context_parallel
    if (rows, recipe.sequence) != (scenario.examples, scenario.sequence):
        yield (
            f"An update here has {scenario.examples} examples of {scenario.sequence:,} tokens; "
            f"batch × accumulation × ranks / context_parallel of this recipe are {rows} of {recipe.sequence:,}."
        )
    if recipe.frozen:
        yield "Frozen weights are not trained; leave frozen out, or train adapters with lora."
    if recipe.saved_on_disk:
        yield "No disk is known here, nor how long it takes; recompute with checkpointing, or leave saved_on_disk out."
    if recipe.teacher:
        yield "No teacher is asked for; leave it out."
    if 0 < recipe.chunked_loss < _SMALLEST_CHUNK or max(recipe.lora, recipe.galore) > _WIDEST:
        yield f"Take at least {_SMALLEST_CHUNK} tokens of a chunked loss, and a rank of lora or galore up to {_WIDEST:,}."
    if 0 < recipe.lora < _NARROWEST or 0 < recipe.galore < 16 * _NARROWEST:
        yield f"So few directions train hardly anything; take lora from {_NARROWEST} on, galore from {16 * _NARROWEST}."
    if recipe.packed:
        yield "Each row here is one text; leave packed out."


@lru_cache(maxsize=256)
def _weigh(scenario: Scenario, recipe: Recipe, layout: Layout) -> Weighed:
    source = scenario.source if layout.cards == layout.data else layout.part_of(scenario.source)
    trial = in_flight(try_recipe(source, recipe, scenario.card), min(layout.pipeline, recipe.accumulation))
    estimate = Estimate(source.name, recipe, trial.log, trial.basis, finder_of(source, recipe))
    sent = ()
    if scenario.cluster is not None:
        width, blocks = source.config.hidden_size, depth_of(source.config)
        sent = tuple(sent_by(layout, scenario.cluster, recipe, width, blocks, trial))
    return Weighed(scenario, recipe, layout, estimate, Need.from_log(trial.log, recipe.device), trial, sent)


def _split_seconds(trial: Trial, layout: Layout, recipe: Recipe, sent: tuple[Sent, ...]) -> Iterator[tuple[str, float]]:
    by_phase = Counter()
    for (phase, _), seconds in trial.clock.items():
        by_phase[phase] += seconds
    yield from ((f"computing in {phase}", seconds) for phase, seconds in by_phase.items())
    yield from ((message.reason, message.seconds) for message in sent if not message.hides)
    computing = by_phase["forward"] + by_phase["backward"]
    if layout.pipeline > 1:
        tensor = sum(message.seconds for message in sent if "tensor" in message.reason)
        yield "the pipeline's bubble", (layout.pipeline - 1) / recipe.accumulation * (computing + tensor)
    room = {"all": computing, "last backward": by_phase["backward"] / recipe.accumulation}
    for message in (message for message in sent if message.hides):
        left = room[message.hides] - message.seconds
        yield f"{message.reason}, as far as it is not hidden", max(0.0, -left)
        room[message.hides] = max(0.0, left)


def in_flight(trial: Trial, count: int) -> Trial:
    """The trial where forward passes of `count` micro-batches are done before the first backward pass."""
    labels = trial.log.labels
    if count == 1:
        return trial
    begin = next(place for place, label in enumerate(labels) if label.phase == "forward")
    end = next(place for place, label in enumerate(labels) if label.phase == "backward")
    update = next((place for place, label in enumerate(labels) if label.phase == "update"), len(labels))
    saved = sum(
        size
        for label, size in zip(labels[begin:end], trial.log.rounded[begin:end].tolist(), strict=True)
        if label.kind == "activations" and block_of(label.module)[1]
    )
    label = Label("forward", "activations", "of other micro-batches", "")
    log = trial.log.with_event(update, -saved * (count - 1), label._replace(phase="backward"))
    return replace(trial, log=log.with_event(begin, saved * (count - 1), label))
