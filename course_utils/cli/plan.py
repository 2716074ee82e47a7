"""`course plan`: whether training a model fits on a card, and what to change if it does not."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import Field, fields, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.cli import FORMS
from course_utils.cli.answers import Answer, recall
from course_utils.cli.card import read_card
from course_utils.cli.progress import Progress, note
from course_utils.errors import CourseError, suggest
from course_utils.memory.step.recipe import LOOPS, Recipe, flag_of, read_fields
from course_utils.units import GiB, format_bytes

if TYPE_CHECKING:
    from course_utils.memory.planning.reading.fields import Reading
    from course_utils.memory.planning.verdict import Plan
    from course_utils.memory.step.model import Source

HELP = "say whether training a model fits on a card, and what to change if it does not"
_DEFAULT_LOOP = "trainer"
_FORMS = FORMS | {
    int | None: FORMS[int],
    bool: {"action": argparse.BooleanOptionalAction},
    str | Callable: FORMS[str],
    tuple[str, ...]: {"type": lambda text: tuple(text.split(",")), "metavar": "NAME,NAME"},
}
_CODE = ".py:"
_BY_FORMULAS = """
Answered from shipped formulas, for the most common changes and for lengths in steps of 64. --search adds all other changes, exact
lengths, ZeRO-3 on several cards and, if you name the card, seconds; it takes about half a minute."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the card, the recipe, and the question."""
    add = parser.add_argument
    add(
        "model",
        nargs="*",
        metavar="MODEL or FILE",
        help="a config.json or its folder, FILE.py:FUNCTION that builds a module (batch(b, s) its inputs), a Hub name, or "
        "one of {course_utils.models:NAMES}; also files that say how to train it: of TRL, Trainer, Accelerate, DeepSpeed, "
        "LLaMA-Factory or axolotl, or a script. After --, your launch line: -- accelerate launch sft.py ...",
    )
    add(
        "--memory",
        metavar="SIZE",
        help="memory of one card: 24GB (24 GiB, as on data sheets), 16000MiB, or a card's name: {course_utils.hardware:MACHINES}",
    )
    add("--machine", metavar="NAME", help="predict seconds for this card (default: the one named by --memory)")
    add("--global-batch", type=int, metavar="N", help="examples per update over all ranks, reached by accumulation")
    add(
        "--data",
        type=Path,
        metavar="FILE",
        help="lengths (one per line), a .jsonl file or a data set: plan for the longest batch",
    )
    add("--why", nargs=2, metavar=("A", "B"), help="compare recipes (checkpointing,batch=4): what fell, what did not")
    add("--explain", type=Path, metavar="FILE", help="explain a CUDA out-of-memory message or a memory snapshot")
    add(
        "--emit",
        metavar="KIND",
        help="write the recipe as settings, a command or a file: {course_utils.memory.planning.emit:FORMATS}",
    )
    add(
        "--nodes",
        type=int,
        metavar="N",
        help="with --emit: number of nodes, each with the same number of ranks (default: 1)",
    )
    add("--row", type=int, metavar="N", help="with --emit: write row N of the plan instead of the recipe")
    add("--search", action="store_true", help="dry-run all changes, even for a model with shipped formulas")
    add("--measure", action="store_true", help="run a few steps on this CPU and compare predicted and measured bytes")
    add("--beside", action="store_true", help="also plan evaluation, saving and loading")
    add("--json", action="store_true", help="print JSON")
    add("--again", action="store_true", help="recompute, ignoring the cache")
    recipe = parser.add_argument_group("the recipe (fields of memory.Recipe)")
    whose = f"the training loop: {', '.join(LOOPS)}, each with its own defaults (default: {_DEFAULT_LOOP})"
    recipe.add_argument("--loop", metavar="NAME", help=whose)
    for field in fields(Recipe):
        recipe.add_argument(flag_of(field.name), default=None, help=_help_of(field), **_FORMS[field.type])


def _help_of(field: Field) -> str:
    """What it is, its choices, its default, and those of the loops that have another."""
    choices = ", ".join(str(choice) for choice in field.metadata["choices"] if choice != "")
    usual = _usual(_DEFAULT_LOOP).get(field.name, field.default)
    others = {loop: _usual(loop).get(field.name, field.default) for loop in LOOPS}
    defaults = [f"default: {_say(usual)}"]
    defaults += [f"{loop}: {_say(value)}" for loop, value in others.items() if value != usual]
    return f"{field.metadata['help']}{f': {choices}' if choices else ''} ({', '.join(defaults)})"


def _say(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value or "none")


def _usual(loop: str) -> dict:
    """The defaults of a recipe of the command."""
    if loop not in LOOPS:
        raise CourseError(f"No loop is called {loop!r}; {suggest(loop, LOOPS)}")
    return {"device": "cuda", **LOOPS[loop]}


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; 0 where it fits, 1 where it does not, 2 where there is no answer."""
    model, reading = _read(arguments)
    answer = _find_answer(argparse.Namespace(**{**vars(arguments), "model": model, "reading": reading}))
    print(json.dumps(answer.values, indent=1) if arguments.json else answer.text)
    return answer.code


def _read(arguments: argparse.Namespace) -> "tuple[str, Reading | None]":
    """The model, and what files or a launch line say of its training; None where there is a model alone, which takes no time."""
    from course_utils.models import is_model

    word = arguments.model[0] if len(arguments.model) == 1 and arguments.launch is None else ""
    if word and is_model(word) and ("/" not in word or _CODE in word or Path(word).exists()):
        return word, None
    from course_utils.memory.planning.reading.read import read

    reading = read(arguments.model, arguments.launch, arguments.ranks).over(_flags(arguments))
    if arguments.data:
        reading.unmodeled.pop("sequence", None)
        reading.provenance["sequence"] = str(arguments.data)
    return reading.model, reading if reading.fields else None


def _find_answer(arguments: argparse.Namespace) -> Answer:
    if _CODE in arguments.model:  # code may call other files, of which nothing is known
        return _work_out(arguments)
    return recall(arguments, _work_out)


def _work_out(arguments: argparse.Namespace) -> Answer:
    """The answer to the one question that is asked, by default whether it fits."""
    from course_utils.memory.formulas.estimate import estimate
    from course_utils.memory.planning.explain import explain, why

    _require_flags_that_belong_together(arguments)
    what, recipe, spread = _model(arguments), _recipe(arguments), []
    if arguments.data:
        from course_utils.memory.planning.reading.lengths import describe_lengths, lengths_of

        lengths = lengths_of(arguments.data)
        recipe, spread = replace(recipe, sequence=max(lengths)), [describe_lengths(lengths)]
    if arguments.why:
        before, after = (estimate(what, _recipe(arguments, words)) for words in arguments.why)
        return Answer(why(before, after), {"before": before.by_instant(), "after": after.by_instant()}, 0)
    if arguments.explain:
        text = explain(arguments.explain, estimate(what, recipe))
        return Answer(text, text.splitlines(), 0)
    if arguments.measure:
        return _measure_here(what, recipe)
    if recipe.compiled and (arguments.row is not None or not arguments.emit):
        return _say_unknown(arguments.model)
    if arguments.emit:
        text = _emit(arguments, what, recipe)
        return Answer(text, text.splitlines(), 0)
    answer = _plan(arguments, what, recipe)
    return answer._replace(text="\n".join([*spread, answer.text]))


def _require_flags_that_belong_together(arguments: argparse.Namespace) -> None:
    from course_utils.memory.planning.emit import require_kind

    for name, kind in (("nodes", "slurm"), ("row", "train")):
        if getattr(arguments, name) is not None and not arguments.emit:
            raise CourseError(f"--{name} works only with --emit; add --emit {kind}, for example.")
    if arguments.emit:
        require_kind(arguments.emit)  # before a plan is worked out for it
        if _CODE in arguments.model and arguments.emit != "accelerate":
            raise CourseError(
                f"--emit {arguments.emit} needs a saved model: call model.config.save_pretrained(FOLDER) and give FOLDER, or "
                "write your own training loop."
            )
    if not (arguments.memory or arguments.why or arguments.explain or arguments.measure or arguments.emit):
        raise CourseError("How large is the card? Give --memory 24GB, or the card's name.")


def _measure_here(what: "str | Source", recipe: Recipe) -> Answer:
    """Each kind of bytes as it is predicted and as a few steps on this machine's CPU have it."""
    from course_utils.memory.formulas.estimate import estimate
    from course_utils.memory.planning.check import check

    frame = check(estimate(what, replace(recipe, device="cpu")))
    table = frame.to_string(formatters={"predicted": format_bytes, "measured": format_bytes})
    text = f"Measured on this machine's CPU, with {recipe.optimizer}; a kind differs if it is off by more than 1 % of the peak."
    return Answer(f"{text}\n{table}", frame.reset_index().to_dict("records"), 0)


def _emit(arguments: argparse.Namespace, what: "str | Source", recipe: Recipe) -> str:
    """The recipe, or a row of its plan, as `--emit` asks for it; where a card is named, only if it may fit there."""
    from course_utils.memory.planning.emit import NO_SETTING, emit

    if arguments.row is not None:
        recipe = _recipe_of_row(arguments)
    elif arguments.memory and not recipe.compiled:
        _refuse_what_does_not_fit(arguments, what, recipe)
    text = emit(arguments.emit, arguments.model, recipe, 1 if arguments.nodes is None else arguments.nodes)
    if arguments.memory and arguments.emit == "trl" and text.startswith(NO_SETTING):
        left_out = text.splitlines()[0].removeprefix(NO_SETTING)
        raise CourseError(
            f"TRL has no setting for this:{left_out} Without it the training may not fit; leave out --memory to write the "
            "file anyway."
        )
    return text


def _add_sources(reading: "Reading", answer: Answer) -> Answer:
    """The answer with what is not counted before it, and where each value stands after it."""
    from course_utils.memory.planning.reading.fields import AT_LEAST

    text, values, code = answer
    reasons = sorted(reading.unmodeled.values(), reverse=True)  # what makes it unknown before what it takes at least
    values |= {"provenance": reading.provenance, "unmodeled": reading.unmodeled, "remarks": reading.remarks}
    if reasons:
        first, _, rest = text.partition("\n")
        others = [f"Not counted either: {reason}." for reason in reasons[1:]]
        text = "\n".join([f"{reasons[0]}. Without that, {first}", *others, rest])
        if reading.effect != AT_LEAST or not code:
            values |= {"verdict": reading.effect, "without_it": values["verdict"]}
            code = 2
    sources = ["", "Where each value comes from:", *reading.table(), *(f"  {remark}" for remark in reading.remarks)]
    return Answer("\n".join([text, *sources]), values, code)


def _recipe_of_row(arguments: argparse.Namespace) -> Recipe:
    """The recipe of a row of the plan, which is stored as if it had been asked for without `--emit`."""
    from course_utils.memory.planning.verdict import DOES_NOT, Need

    without_emit = argparse.Namespace(**{**vars(arguments), "emit": None, "row": None, "nodes": None})
    rows = _find_answer(without_emit).values["rows"]
    if not 1 <= arguments.row <= len(rows):
        raise CourseError(f"The plan has {len(rows)} rows, and no row {arguments.row}.")
    row = rows[arguments.row - 1]
    if row["verdict"] == DOES_NOT:
        raise CourseError(f"Row {arguments.row} alone does not fit: it needs {Need(*row['need'])}.")
    return Recipe.of_plain(row["recipe"])


def _refuse_what_does_not_fit(arguments: argparse.Namespace, what: "str | Source", recipe: Recipe) -> None:
    from course_utils.memory.formulas.trial import attempt
    from course_utils.memory.planning.verdict import DOES_NOT, needs
    from course_utils.memory.step.model import source_of

    memory, _ = read_card(arguments.memory, arguments.machine)
    need = needs(attempt(source_of(what), recipe, traffic=False).log, recipe.device)
    if need.verdict(memory) == DOES_NOT:
        raise CourseError(
            f"This recipe does not fit in {format_bytes(memory)}: it needs {need}. Add --row N to write row N of the plan, which "
            "you see without --emit, or leave out --memory."
        )


def _say_unknown(model: str) -> Answer:
    """The answer for a compiled step, which has no numbers."""
    from course_utils.memory.planning.verdict import LARGEST_BATCH, LONGEST_SEQUENCE
    from course_utils.memory.step.model import COMPILED

    rows = ("peak", "need", LARGEST_BATCH, LONGEST_SEQUENCE)
    text = [f"{model}, compiled: unknown. {COMPILED}", *(f"  {row}: unknown" for row in rows)]
    values = {"model": model, "verdict": "unknown", "why": COMPILED, **dict.fromkeys(rows)}
    return Answer("\n".join(text), values, 2)


def _plan(arguments: argparse.Namespace, what: "str | Source", recipe: Recipe) -> Answer:
    """Whether it fits, and what to do where it does not, with all that is said above and below."""
    from course_utils.memory.planning.verdict import DOES_NOT

    remarks = _remark_on_dtype(arguments, recipe)
    plan = _plan_by_formulas(arguments, what, recipe)
    if plan is not None:
        remarks = [_BY_FORMULAS, *remarks]
    else:
        plan = _plan_by_dry_runs(arguments, what, recipe)
    answer = Answer(str(plan), plan.json(), int(plan.verdict == DOES_NOT))
    if arguments.reading:
        answer = _add_sources(arguments.reading, answer)
    if arguments.beside:
        answer.values["beside"] = plan.estimate.aside()
        sizes = ", ".join(f"{name} {size / GiB:.2f} GiB" for name, size in answer.values["beside"].items())
        remarks = [*remarks, f"Beside training: {sizes}."]
    return answer._replace(text="\n".join([answer.text, *remarks]))


def _plan_by_formulas(arguments: argparse.Namespace, what: "str | Source", recipe: Recipe) -> "Plan | None":
    """The plan for a model by its name, if shipped formulas have it and no more is asked for."""
    from course_utils.memory.planning.at_once import plan_at_once
    from course_utils.models import known_as

    memory, _ = read_card(arguments.memory, arguments.machine)
    asks_for_more = arguments.search or arguments.machine or arguments.beside
    if asks_for_more or not isinstance(what, str) or Path(what).exists():
        return None
    return plan_at_once(known_as(what), memory, recipe)


def _plan_by_dry_runs(arguments: argparse.Namespace, what: "str | Source", recipe: Recipe) -> "Plan":
    from course_utils.hardware import MACHINES
    from course_utils.memory.planning.plan import plan
    from course_utils.memory.step.model import source_of

    memory, machine = read_card(arguments.memory, arguments.machine)
    progress, source = Progress(), source_of(what)
    if arguments.sequence is None and not arguments.data and recipe.sequence == Recipe.sequence and source.positions:
        recipe = replace(recipe, sequence=min(recipe.sequence, source.positions))
    if source.whole:
        note(f"{source.whole}.")
    answer = plan(source, memory, recipe, machine=MACHINES.get(machine), say=progress.say, show=progress.show)
    progress.close()
    return answer


def _remark_on_dtype(arguments: argparse.Namespace, recipe: Recipe) -> list[str]:
    """Transformers loads published weights in their own dtype, where nobody says another."""
    from course_utils.memory.planning.reading.hub import describe

    dtype = describe(arguments.model).dtype if _CODE not in arguments.model else None
    if arguments.reading or arguments.precision or recipe.precision != "fp32" or dtype not in ("bfloat16", "float16"):
        return []
    return [
        f"\nPlanned with float32 weights. They are published in {dtype}, and from_pretrained loads them so; to plan that, add "
        "--precision bf16."
    ]


def _model(arguments: argparse.Namespace) -> "str | Source":
    """A name or a path as it is, or with the head that a script takes; of FILE.py:FUNCTION the function, with the examples of a
    function `batch` in the same file."""
    if arguments.reading and arguments.reading.head:
        from course_utils.memory.step.model import with_head

        return with_head(arguments.model, *arguments.reading.head)
    file, is_code, name = arguments.model.rpartition(_CODE)
    if not is_code:
        return arguments.model
    from runpy import run_path

    from course_utils.memory.step.model import source_of

    path = Path(f"{file}.py")
    if not path.is_file():
        raise CourseError(f"There is no file {path}.")
    sys.path.insert(0, str(path.parent.resolve()))  # as for a script, whose neighbors can be imported
    try:
        functions = run_path(str(path))
    except ModuleNotFoundError as error:
        raise CourseError(f"{path} imports {error.name}, which is not installed here.") from error
    if not callable(functions.get(name)):
        raise CourseError(f"{path} has no function called {name!r}; add one that returns the model.")
    try:
        signature(functions[name]).bind()
    except TypeError as error:
        raise CourseError(f"{name}() in {path} requires arguments ({error}); make them optional.") from error
    return source_of(functions[name], functions.get("batch"))


def _flags(arguments: argparse.Namespace) -> dict[str, object]:
    """The fields of a recipe that are given as options."""
    values = {field.name: getattr(arguments, field.name) for field in fields(Recipe)}
    return {name: value for name, value in values.items() if value is not None}


def _recipe(arguments: argparse.Namespace, words: str = "") -> Recipe:
    """From the options, and on top of them from words such as `checkpointing,batch=4`."""
    settings = (arguments.reading.fields if arguments.reading else _flags(arguments)) | read_fields(words)
    loop = arguments.loop or (arguments.reading and arguments.reading.tool.loop) or _DEFAULT_LOOP
    chosen = {**_usual(loop), **settings}
    if chosen.get("in_backward") and "clipping" not in settings:  # which looks at all gradients together
        chosen["clipping"] = False
    if "context_parallel" in chosen:
        chosen.setdefault("ranks", chosen["context_parallel"])
    if arguments.global_batch:
        a_round = chosen.get("batch", Recipe.batch) * chosen.get("ranks", 1) // chosen.get("context_parallel", 1)
        if arguments.global_batch % a_round:
            raise CourseError(
                f"A global batch of {arguments.global_batch} does not divide into rounds of {a_round}, one micro-batch "
                "per rank; change --global-batch or --batch."
            )
        chosen["accumulation"] = arguments.global_batch // a_round
    return Recipe(**chosen)
