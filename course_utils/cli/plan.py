"""`course plan`."""

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import Field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError, suggest
from course_utils.memory.step.recipe import LOOPS, Recipe, flag_of, read_fields
from course_utils.store import Section
from course_utils.units import format_bytes

if TYPE_CHECKING:
    from course_utils.memory.planning.reading.fields import Reading
    from course_utils.memory.planning.verdict import Option
    from course_utils.memory.step.model import Source

HELP = "say whether training a model fits on a card, and what to change if it does not"
_EXIT = {"fits": 0, "tight": 0, "does not fit": 1}
_DEFAULT_LOOP = "trainer"
_FORMS = {  # by the type of a field what argparse asks for
    int: {"type": int, "metavar": "N"},
    int | None: {"type": int, "metavar": "N"},
    float: {"type": float, "metavar": "X"},
    bool: {"action": argparse.BooleanOptionalAction},
    str: {"metavar": "NAME"},
    str | Callable: {"metavar": "NAME"},
    tuple[str, ...]: {"type": lambda text: tuple(text.split(",")), "metavar": "NAME,NAME"},
}
_CODE = ".py:"
_ANSWERS = Section("plans")
_BY_FORMULAS = """
Answered from shipped formulas, for the most common changes and for lengths in steps of 64. --search adds all other changes, exact
lengths, ZeRO-3 on several cards and, if you name the card, seconds; it takes about half a minute."""
LONG = 5.0
"""Seconds after which somebody who sees no counter wants to know."""
_OFTEN = 30.0  # seconds after which they wonder whether it still goes on
_MOST_GB = 1000  # more digits than these are a card's number
_UNITS = {"GB": 2**30, "GIB": 2**30, "MB": 2**20, "MIB": 2**20, "TB": 2**40, "TIB": 2**40}


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
    for one in fields(Recipe):
        recipe.add_argument(flag_of(one.name), default=None, help=_help_of(one), **_FORMS[one.type])


def _help_of(one: Field) -> str:
    """What it is, its choices, its default, and those of the loops that have another."""
    choices = ", ".join(str(choice) for choice in one.metadata["choices"] if choice != "")
    usual = _usual(_DEFAULT_LOOP).get(one.name, one.default)
    others = {loop: _usual(loop).get(one.name, one.default) for loop in LOOPS}
    defaults = [f"default: {_say(usual)}"]
    defaults += [f"{loop}: {_say(value)}" for loop, value in others.items() if value != usual]
    return f"{one.metadata['help']}{f': {choices}' if choices else ''} ({', '.join(defaults)})"


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
    text, values, code = _find_answer(argparse.Namespace(**{**vars(arguments), "model": model, "reading": reading}))
    print(json.dumps(values, indent=1) if arguments.json else text)
    return code


def _read(arguments: argparse.Namespace) -> "tuple[str, Reading | None]":
    """The model, and what files or a launch line say of its training; None where there is a model alone, which takes no time."""
    from course_utils.models import is_model

    word = arguments.model[0] if len(arguments.model) == 1 and arguments.launch is None else ""
    if word and is_model(word) and ("/" not in word or _CODE in word or Path(word).exists()):
        return word, None
    from course_utils.memory.planning.reading import read

    reading = read(arguments.model, arguments.launch, arguments.ranks).over(_flags(arguments))
    if arguments.data:
        reading.unmodelled.pop("sequence", None)
        reading.provenance["sequence"] = str(arguments.data)
    return reading.model, reading if reading.fields else None


def _find_answer(arguments: argparse.Namespace) -> tuple[str, object, int]:
    """The answer as it is stored, or else worked out and stored: the text, the plain values, the exit code."""
    if _CODE in arguments.model:  # code may call other files, of which nothing is known
        return _answer(arguments)
    key = _key_of(arguments)
    answer = None if arguments.again or arguments.measure else _ANSWERS.get(key)
    if answer is None:
        answer = _answer(arguments)
        _ANSWERS.put(key, answer)
    return answer


def _key_of(arguments: argparse.Namespace) -> str:
    """The key of the answer to just this question.

    By its words, with models and cards by the names that they have here, what its files and the course's code hold, and the
    versions of the libraries.
    """
    import course_utils
    from course_utils import hardware, models

    words = {n: str(value) for n, value in sorted(vars(arguments).items()) if n not in ("run", "json", "again")}
    for name, room in {"model": models, "teacher": models, "memory": hardware, "machine": hardware}.items():
        if getattr(arguments, name) and not Path(words[name]).exists():
            words[name] = room.known_as(words[name])
    files = [Path(one) for one in (arguments.model, arguments.teacher, arguments.data, arguments.explain) if one]
    if arguments.data:  # of a folder what tells one content from another without reading it
        inside = ((path.name, path.stat()) for path in sorted(Path(arguments.data).glob("*")))
        words["files of data"] = str([(name, one.st_size, one.st_mtime_ns) for name, one in inside])
    files = [(path / "config.json" if path.is_dir() else path) for path in files]
    code = Path(course_utils.__file__).parent
    # A later version of the course may answer otherwise, also by its tables of tools, models and formulas.
    files += sorted(path for kind in ("py", "yaml", "txt", "j2", "zip") for path in code.rglob(f"*.{kind}"))
    texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()]
    versions = []
    for package in ("torch", "transformers", "peft", "trl", "bitsandbytes"):
        with suppress(PackageNotFoundError):
            versions.append(version(package))
    question = json.dumps([words, texts, versions])
    return hashlib.sha256(question.encode()).hexdigest()[:24]


def _answer(arguments: argparse.Namespace) -> tuple[str, object, int]:
    """The text, the plain values, the exit code: of the one question that is asked, by default whether it fits."""
    from course_utils.memory.formulas.estimate import estimate
    from course_utils.memory.planning.explain import explain, why

    _require_flags_that_belong_together(arguments)
    what, recipe, text = _model(arguments), _recipe(arguments), []
    if arguments.data:
        recipe, spread = _take_longest(arguments.data, recipe)
        text.append(spread)
    if arguments.why:
        before, after = (estimate(what, _recipe(arguments, words)) for words in arguments.why)
        return why(before, after), {"before": before.by_instant(), "after": after.by_instant()}, 0
    if arguments.explain:
        answer = explain(arguments.explain, estimate(what, recipe))
        return answer, answer.splitlines(), 0
    if arguments.measure:
        return _measure_here(what, recipe)
    if recipe.compiled and (arguments.row is not None or not arguments.emit):
        return _say_unknown(arguments.model)
    if arguments.emit:
        answer = _emit(arguments, what, recipe)
        return answer, answer.splitlines(), 0
    plan, remark = _plan(arguments, what, recipe)
    values, code = plan.json(), _EXIT[plan.verdict]
    text.append(str(plan))
    if arguments.reading:
        code = _say_sources(arguments.reading, text, values, code)
    text += remark
    if arguments.beside:
        values["beside"] = plan.estimate.aside()
        beside = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in values["beside"].items())
        text.append(f"Beside training: {beside}.")
    return "\n".join(text), values, code


def _require_flags_that_belong_together(arguments: argparse.Namespace) -> None:
    from course_utils.memory.planning.emit import require_kind

    if arguments.nodes is not None and not arguments.emit:
        raise CourseError("--nodes works only with --emit; add --emit slurm, for example.")
    if arguments.row is not None and not arguments.emit:
        raise CourseError("--row works only with --emit; add --emit train, for example.")
    if arguments.emit:
        require_kind(arguments.emit)  # before a plan is worked out for it
        if _CODE in arguments.model and arguments.emit != "accelerate":
            raise CourseError(
                f"--emit {arguments.emit} needs a saved model: call model.config.save_pretrained(FOLDER) and give FOLDER, or "
                "write your own training loop."
            )
    if not (arguments.memory or arguments.why or arguments.explain or arguments.measure or arguments.emit):
        raise CourseError("How large is the card? Give --memory 24GB, or the card's name.")


def _take_longest(data: Path, recipe: Recipe) -> tuple[Recipe, str]:
    """The recipe for a batch of a data set's longest examples, and how long its examples are."""
    from course_utils.memory.planning.guard import lengths_of

    lengths = sorted(lengths_of(data))
    half, most = lengths[len(lengths) // 2], lengths[int(0.99 * len(lengths))]
    spread = f"{half:,} tokens at the median, {most:,} at 99 %, {lengths[-1]:,} at most"
    text = f"{len(lengths):,} examples of {spread}: planned for a batch of the longest."
    return replace(recipe, sequence=lengths[-1]), text


def _measure_here(what: "str | Source", recipe: Recipe) -> tuple[str, list[dict], int]:
    """Each kind of bytes as it is predicted and as a few steps on this machine's CPU have it."""
    from course_utils.memory.formulas.estimate import estimate
    from course_utils.memory.planning.guard import check

    frame = check(estimate(what, replace(recipe, device="cpu")))
    table = frame.to_string(formatters={"predicted": format_bytes, "measured": format_bytes})
    text = f"Measured on this machine's CPU, with {recipe.optimizer}; a kind differs if it is off by more than 1 % of the peak."
    return f"{text}\n{table}", frame.reset_index().to_dict("records"), 0


def _emit(arguments: argparse.Namespace, what: "str | Source", recipe: Recipe) -> str:
    """The recipe, or a row of its plan, as `--emit` asks for it; where a card is named, only if it may fit there."""
    from course_utils.memory.planning.emit import NO_SETTING, emit

    if arguments.row is not None:
        recipe = _recipe_of_row(arguments)
    elif arguments.memory and not recipe.compiled:
        _refuse_what_does_not_fit(arguments, what, recipe)
    answer = emit(arguments.emit, arguments.model, recipe, 1 if arguments.nodes is None else arguments.nodes)
    if arguments.memory and arguments.emit == "trl" and answer.startswith(NO_SETTING):
        left_out = answer.splitlines()[0].removeprefix(NO_SETTING)
        raise CourseError(
            f"TRL has no setting for this:{left_out} Without it the training may not fit; leave out --memory to write the "
            "file anyway."
        )
    return answer


def _say_sources(reading: "Reading", text: list[str], values: dict, code: int) -> int:
    """Put before an answer what is not counted, and after it where each value stands; returns the exit code."""
    from course_utils.memory.planning.reading import AT_LEAST

    reasons = sorted(reading.unmodelled.values(), reverse=True)  # what makes it unknown before what it takes at least
    values |= {"provenance": reading.provenance, "unmodelled": reading.unmodelled, "remarks": reading.remarks}
    if reasons:
        first, _, rest = text[-1].partition("\n")
        others = [f"Not counted either: {reason}." for reason in reasons[1:]]
        text[-1] = "\n".join([f"{reasons[0]}. Without that, {first}", *others, rest])
        if reading.effect != AT_LEAST or not code:
            values |= {"verdict": reading.effect, "without_it": values["verdict"]}
            code = 2
    text += ["", "Where each value comes from:", *reading.table(), *(f"  {remark}" for remark in reading.remarks)]
    return code


def _recipe_of_row(arguments: argparse.Namespace):
    """The recipe of a row of the plan, which is kept as if it had been asked for without `--emit`."""
    from course_utils.memory.planning.verdict import DOES_NOT

    without_emit = argparse.Namespace(**{**vars(arguments), "emit": None, "row": None, "nodes": None})
    rows = _find_answer(without_emit)[1]["rows"]
    if not 1 <= arguments.row <= len(rows):
        raise CourseError(f"The plan has {len(rows)} rows, and no row {arguments.row}.")
    row = rows[arguments.row - 1]
    if row["verdict"] == DOES_NOT:
        raise CourseError(
            f"Row {arguments.row} alone does not fit: it needs {' to '.join(map(format_bytes, row['need']))}."
        )
    return Recipe.of_plain(row["recipe"])


def _refuse_what_does_not_fit(arguments: argparse.Namespace, what: "str | Source", recipe: Recipe) -> None:
    from course_utils.memory.formulas.trial import attempt
    from course_utils.memory.planning.verdict import DOES_NOT, needs, verdict_of
    from course_utils.memory.step.model import source_of

    memory, _ = _card(arguments)
    need = needs(attempt(source_of(what), recipe, traffic=False).log, recipe.device)
    if verdict_of(need, memory) == DOES_NOT:
        raise CourseError(
            f"This recipe does not fit in {format_bytes(memory)}: it needs {' to '.join(map(format_bytes, need))}. Add --row N "
            "to write row N of the plan, which you see without --emit, or leave out --memory."
        )


def _say_unknown(model: str) -> tuple[str, dict, int]:
    """The answer for a compiled step, which has no numbers."""
    from course_utils.memory.step.model import COMPILED

    rows = ("peak", "need", "largest batch", "longest sequence")
    text = [f"{model}, compiled: unknown. {COMPILED}", *(f"  {row}: unknown" for row in rows)]
    return "\n".join(text), {"model": model, "verdict": "unknown", "why": COMPILED, **dict.fromkeys(rows)}, 2


def _card(arguments: argparse.Namespace) -> tuple[int, str | None]:
    """The bytes of the card, and the machine whose seconds are asked for."""
    from course_utils.hardware import MACHINES, known_as

    card, given = known_as(arguments.memory), arguments.memory.strip()
    named = known_as(arguments.machine) if arguments.machine else card if card in MACHINES else None
    if named is not None and named not in MACHINES:
        raise CourseError(
            f"No card is called {named!r}; {suggest(named, MACHINES)} To predict seconds for another card, name "
            "one with similar memory bandwidth and compute."
        )
    if card in MACHINES:
        return MACHINES[card].memory, named
    if given.isdigit() and int(given) < _MOST_GB:
        raise CourseError(f"--memory {given} has no unit; did you mean {given}GB?")
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]+)", given)
    if not match or match[2].upper() not in _UNITS:
        within = (name for name in MACHINES if re.search(rf"(?i)\b{re.escape(name)}\b", given))
        raise CourseError(
            f"{arguments.memory!r} is neither a memory size, such as 24GB or 16000MiB, nor a known card; "
            f"{suggest(next(within, given), MACHINES)} "
            "For any other card give its memory and, for seconds, a similar card with --machine."
        )
    return int(float(match[1]) * _UNITS[match[2].upper()]), named


def _plan(arguments: argparse.Namespace, what: "str | Source", recipe: Recipe) -> tuple:
    """The plan, and what is to be said below it."""
    memory, named = _card(arguments)
    is_named = isinstance(what, str) and not Path(what).exists()
    if is_named and not (arguments.search or arguments.machine or arguments.beside):
        from course_utils.memory.planning.at_once import plan_at_once
        from course_utils.models import known_as

        answer = plan_at_once(known_as(what), memory, recipe)
        if answer is not None:
            return answer, [_BY_FORMULAS, *_remark_on_dtype(arguments, recipe)]
    from course_utils.hardware import MACHINES
    from course_utils.memory.planning.plan import plan
    from course_utils.memory.planning.verdict import Plan
    from course_utils.memory.step.model import source_of

    begun, is_terminal, last_line = time.monotonic(), sys.stderr.isatty(), 0.0

    def say(what_now: str) -> None:
        nonlocal last_line
        passed = time.monotonic() - begun
        if is_terminal and passed > 1:
            _note(f"\r\033[K{passed:.0f} s: {what_now}", end="")
        elif passed > LONG and not last_line:
            last_line = passed
            _note("Planning takes half a minute for most models, minutes for some. The answer is then cached.")
        elif last_line and passed > last_line + _OFTEN:
            last_line = passed
            _note(f"{passed:.0f} s: {what_now}")

    def show(part: "Plan | Option") -> None:
        """To somebody who watches: the verdict, and each row that fits, as soon as they are known."""
        line = part.headline if isinstance(part, Plan) else f"Fits: {' + '.join(part.names)}."
        if is_terminal:
            _note(f"\r\033[K{line}")

    source = source_of(what)
    if arguments.sequence is None and not arguments.data and recipe.sequence == Recipe.sequence and source.positions:
        recipe = replace(recipe, sequence=min(recipe.sequence, source.positions))
    if source.whole:
        _note(f"{source.whole}.")
    answer = plan(source, memory, recipe, machine=MACHINES.get(named), say=say, show=show)
    _note("\r\033[K" * is_terminal, end="")
    return answer, _remark_on_dtype(arguments, recipe)


def _note(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


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


def _model(arguments: argparse.Namespace):
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
    given = {one.name: getattr(arguments, one.name) for one in fields(Recipe)}
    return {name: value for name, value in given.items() if value is not None}


def _recipe(arguments: argparse.Namespace, words: str = ""):
    """From the options, and on top of them from words such as `checkpointing,batch=4`."""
    given = (arguments.reading.fields if arguments.reading else _flags(arguments)) | read_fields(words)
    loop = arguments.loop or (arguments.reading and arguments.reading.tool.loop) or _DEFAULT_LOOP
    chosen = {**_usual(loop), **given}
    if chosen.get("in_backward") and "clipping" not in given:  # which looks at all gradients together
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
