"""`course plan`, which says whether training a model fits on a card, and what to change if it does not.

Functions import what needs torch, since a stored answer needs none.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.cli import FORMS
from course_utils.cli.planning.answer_cache import Answer, find_answer
from course_utils.cli.planning.progress import StderrProgress, note
from course_utils.cli.planning.question import DEFAULT_LOOP, Question, defaults_of
from course_utils.errors import CourseError
from course_utils.memory.planning.need import DOES_NOT_FIT, Need
from course_utils.memory.step.recipe import LOOPS, Recipe, flag_of
from course_utils.units import GiB, format_bytes

if TYPE_CHECKING:
    from course_utils.memory.planning.reading.fields import Reading
    from course_utils.memory.planning.result import Plan

HELP = "say whether training a model fits on a card, and what to change if it does not"
_FORMS = FORMS | {
    int | None: FORMS[int],
    bool: {"action": argparse.BooleanOptionalAction},
    str | Callable: FORMS[str],
    tuple[str, ...]: {"type": lambda text: tuple(text.split(",")), "metavar": "NAME,NAME"},
}
_NOTE_ON_FORMULAS = """
Answered from shipped formulas, for the most common changes and for lengths in steps of 64. --search adds all other changes, exact
lengths, ZeRO-3 on several cards and, if you name the card, seconds; it takes about half a minute."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    lengths = "lengths (one per line), a .jsonl file or a data set: plan for the longest batch"
    add("--data", type=Path, metavar="FILE", help=lengths)
    add("--why", nargs=2, metavar=("A", "B"), help="compare recipes (checkpointing,batch=4): what fell, what did not")
    add("--explain", type=Path, metavar="FILE", help="explain a CUDA out-of-memory message or a memory snapshot")
    add(
        "--emit",
        metavar="KIND",
        help="write the recipe as settings, a command or a file: {course_utils.memory.planning.emit:FORMATS}",
    )
    nodes = "with --emit: number of nodes, each with the same number of ranks (default: 1)"
    add("--nodes", type=int, metavar="N", help=nodes)
    add("--row", type=int, metavar="N", help="with --emit: write row N of the plan instead of the recipe")
    add("--search", action="store_true", help="dry-run all changes, even for a model with shipped formulas")
    add("--measure", action="store_true", help="run a few steps on this CPU and compare predicted and measured bytes")
    add("--beside", action="store_true", help="also plan evaluation, saving and loading")
    add("--json", action="store_true", help="print JSON")
    add("--again", action="store_true", help="recompute, ignoring the cache")
    recipe = parser.add_argument_group("the recipe (fields of memory.Recipe)")
    whose = f"the training loop: {', '.join(LOOPS)}, each with its own defaults (default: {DEFAULT_LOOP})"
    recipe.add_argument("--loop", metavar="NAME", help=whose)
    for field in fields(Recipe):
        recipe.add_argument(flag_of(field.name), default=None, help=_help_of(field), **_FORMS[field.type])


def _help_of(field: Field) -> str:
    """A field's help: its phrase, its choices, its default, and the loops with another default."""
    choices = ", ".join(str(choice) for choice in field.metadata["choices"] if choice != "")
    by_loop = {loop: defaults_of(loop).get(field.name, field.default) for loop in LOOPS}
    default = by_loop[DEFAULT_LOOP]
    defaults = [f"default: {_say(default)}"]
    defaults += [f"{loop}: {_say(value)}" for loop, value in by_loop.items() if value != default]
    return f"{field.metadata['help']}{f': {choices}' if choices else ''} ({', '.join(defaults)})"


def _say(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value or "none")


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; return 0 if training fits, 1 if it does not, 2 if there is no answer."""
    answer = find_answer(Question.from_arguments(arguments), _compute_answer)
    print(json.dumps(answer.values, indent=1) if arguments.json else answer.text)
    return answer.code


def _compute_answer(question: Question) -> Answer:
    """The answer to the question that the flags ask, by default whether training fits."""
    from course_utils.memory.formulas.estimate import estimate
    from course_utils.memory.planning.explain import explain, explain_change

    _require_flags_that_belong_together(question)
    arguments = question.arguments
    recipe = question.recipe
    if arguments.why:
        before, after = (estimate(question.source, question.recipe_with(changes)) for changes in arguments.why)
        return Answer(explain_change(before, after), {"before": before.by_instant(), "after": after.by_instant()}, 0)
    if arguments.explain:
        text = explain(arguments.explain, estimate(question.source, recipe))
        return Answer(text, text.splitlines(), 0)
    if arguments.measure:
        return _measure_here(question)
    if recipe.compiled and (arguments.row is not None or not arguments.emit):
        return _say_unknown(question.model)
    if arguments.emit:
        text = _emit(question)
        return Answer(text, text.splitlines(), 0)
    return _answer_by_plan(question)


def _require_flags_that_belong_together(question: Question) -> None:
    from course_utils.memory.planning.emit import require_form

    arguments = question.arguments
    for name, kind in (("nodes", "slurm"), ("row", "train")):
        if getattr(arguments, name) is not None and not arguments.emit:
            raise CourseError(f"--{name} works only with --emit; add --emit {kind}, for example.")
    if arguments.emit:
        require_form(arguments.emit)  # before the plan, which takes seconds
        if question.is_function and arguments.emit != "accelerate":
            raise CourseError(
                f"--emit {arguments.emit} needs a saved model: call model.config.save_pretrained(FOLDER) and give FOLDER, or "
                "write your own training loop."
            )
    if not (arguments.memory or arguments.why or arguments.explain or arguments.measure or arguments.emit):
        raise CourseError("How large is the card? Give --memory 24GB, or the card's name.")


def _measure_here(question: Question) -> Answer:
    """A table of predicted bytes, and of those measured in a few steps on this machine's CPU, by kind."""
    from course_utils.memory.formulas.estimate import estimate
    from course_utils.memory.planning.check import check

    recipe = replace(question.recipe, device="cpu")
    frame = check(estimate(question.source, recipe))
    table = frame.to_string(formatters={"predicted": format_bytes, "measured": format_bytes})
    text = f"Measured on this machine's CPU, with {recipe.optimizer}; a kind differs if it is off by more than 1 % of the peak."
    return Answer(f"{text}\n{table}", frame.reset_index().to_dict("records"), 0)


def _emit(question: Question) -> str:
    """The recipe, or a row of its plan, as `--emit` says. Raises `CourseError` if it does not fit on a card that is named."""
    from course_utils.memory.planning.emit import NO_SETTING, emit

    arguments = question.arguments
    recipe = question.recipe
    if arguments.row is not None:
        recipe = _recipe_of_row(question)
    elif arguments.memory and not recipe.compiled:
        _refuse_what_does_not_fit(question)
    text = emit(arguments.emit, question.model, recipe, 1 if arguments.nodes is None else arguments.nodes)
    if arguments.memory and arguments.emit == "trl" and text.startswith(NO_SETTING):
        left_out = text.splitlines()[0].removeprefix(NO_SETTING)
        raise CourseError(
            f"TRL has no setting for this:{left_out} Without it the training may not fit; leave out --memory to write the "
            "file anyway."
        )
    return text


def _add_sources(reading: "Reading", answer: Answer) -> Answer:
    """The answer with the file and line of each value after it."""
    sources = ["", "Where each value comes from:", *reading.table(), *(f"  {remark}" for remark in reading.remarks)]
    values = {
        "provenance": reading.provenance,
        "unmodeled": {key: str(unmodeled) for key, unmodeled in reading.unmodeled.items()},
        "remarks": reading.remarks,
    }
    return Answer("\n".join([answer.text, *sources]), answer.values | values, answer.code)


def _qualify_verdict(reading: "Reading", answer: Answer) -> Answer:
    """The answer with what is not counted before it. Its verdict is that of the reading, unless training does not fit even so."""
    from course_utils.memory.planning.reading.tools import AT_LEAST, UNKNOWN

    first, *others = sorted(reading.unmodeled.values(), key=lambda u: (u.effect == UNKNOWN, u.reason), reverse=True)
    headline, _, rest = answer.text.partition("\n")
    lines = [f"{first}. Without that, {headline}", *(f"Not counted either: {unmodeled}." for unmodeled in others), rest]
    answer = answer._replace(text="\n".join(lines))
    if reading.effect == AT_LEAST and answer.code:
        return answer
    verdicts = {"verdict": reading.effect, "without_it": answer.values["verdict"]}
    return answer._replace(values=answer.values | verdicts, code=2)


def _recipe_of_row(question: Question) -> Recipe:
    """The recipe of the row `--row` of the plan, which is the answer to the question without `--emit`."""
    number = question.arguments.row
    without_emit = argparse.Namespace(**{**vars(question.arguments), "emit": None, "row": None, "nodes": None})
    rows = find_answer(replace(question, arguments=without_emit), _compute_answer).values["rows"]
    if not 1 <= number <= len(rows):
        raise CourseError(f"The plan has {len(rows)} rows, and no row {number}.")
    row = rows[number - 1]
    if row["verdict"] == DOES_NOT_FIT:
        raise CourseError(f"Row {number} alone does not fit: it needs {Need(*row['need'])}.")
    return Recipe.from_plain(row["recipe"])


def _refuse_what_does_not_fit(question: Question) -> None:
    from course_utils.memory.formulas.trial import try_recipe
    from course_utils.memory.step.model import source_of

    memory, _ = question.card
    recipe = question.recipe
    need = Need.from_log(try_recipe(source_of(question.source), recipe, traffic=False).log, recipe.device)
    if need.verdict(memory) == DOES_NOT_FIT:
        raise CourseError(
            f"This recipe does not fit in {format_bytes(memory)}: it needs {need}. Add --row N to write row N of the plan, which "
            "you see without --emit, or leave out --memory."
        )


def _say_unknown(model: str) -> Answer:
    """The answer for a compiled step, whose figures are unknown."""
    from course_utils.memory.planning.result import LARGEST_BATCH, LONGEST_SEQUENCE
    from course_utils.memory.step.model import WHY_COMPILED_IS_UNKNOWN

    rows = ("peak", "need", LARGEST_BATCH, LONGEST_SEQUENCE)
    text = [f"{model}, compiled: unknown. {WHY_COMPILED_IS_UNKNOWN}", *(f"  {row}: unknown" for row in rows)]
    values = {"model": model, "verdict": "unknown", "why": WHY_COMPILED_IS_UNKNOWN, **dict.fromkeys(rows)}
    return Answer("\n".join(text), values, 2)


def _answer_by_plan(question: Question) -> Answer:
    """The plan as an answer, with remarks before and after it."""
    from course_utils.memory.planning.reading.lengths import describe_lengths

    plan = _plan_by_formulas(question)
    remarks = [_NOTE_ON_FORMULAS] if plan else []
    plan = plan or _plan_by_dry_runs(question)
    remarks += _remark_on_dtype(question)
    answer = Answer(str(plan), plan.json(), int(plan.verdict == DOES_NOT_FIT))
    if question.reading and question.reading.unmodeled:
        answer = _qualify_verdict(question.reading, answer)
    if question.reading:
        answer = _add_sources(question.reading, answer)
    if question.arguments.beside:
        answer.values["beside"] = plan.estimate.beside_training()
        sizes = ", ".join(f"{name} {size / GiB:.2f} GiB" for name, size in answer.values["beside"].items())
        remarks.append(f"Beside training: {sizes}.")
    spread = [describe_lengths(question.lengths)] if question.lengths else []
    return answer._replace(text="\n".join([*spread, answer.text, *remarks]))


def _plan_by_formulas(question: Question) -> "Plan | None":
    """The plan of a named model that needs no dry run; None if there is none, or if more is asked for."""
    from course_utils.memory.planning.at_once import plan_at_once
    from course_utils.models import canonical_name

    arguments = question.arguments
    source = question.source
    asks_for_more = arguments.search or arguments.machine or arguments.beside
    if asks_for_more or not isinstance(source, str) or Path(source).exists():
        return None
    return plan_at_once(canonical_name(source), question.card[0], question.recipe)


def _plan_by_dry_runs(question: Question) -> "Plan":
    from course_utils.hardware import MACHINES
    from course_utils.memory.planning.plan import plan
    from course_utils.memory.step.model import source_of

    memory, machine = question.card
    recipe = question.recipe
    source = source_of(question.source)
    says_length = question.arguments.sequence is not None or question.lengths
    if not says_length and recipe.sequence == Recipe.sequence and source.positions:
        recipe = replace(recipe, sequence=min(recipe.sequence, source.positions))
    if source.warning_of_slowness:
        note(f"{source.warning_of_slowness}.")
    progress = StderrProgress()
    result = plan(source, memory, recipe, machine=MACHINES.get(machine), progress=progress)
    progress.close()
    return result


def _remark_on_dtype(question: Question) -> list[str]:
    """A remark on weights that are published in 16 bits; none if the question gives a precision."""
    from course_utils.memory.planning.reading.hub import describe

    says_dtype = question.arguments.precision or question.recipe.precision != "fp32"
    if question.is_function or question.reading or says_dtype:
        return []
    dtype = describe(question.model).dtype
    if dtype not in ("bfloat16", "float16"):
        return []
    return [
        f"\nPlanned with float32 weights. They are published in {dtype}, and from_pretrained loads them so; to plan that, add "
        "--precision bf16."
    ]
