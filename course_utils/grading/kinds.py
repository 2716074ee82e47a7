"""The kinds of question. Each builder returns a `Question`, and passes on arguments that it does not name.

A bug hunt is a `function` or a `stream` whose stub holds the bug.
"""

import copy
import sys
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from random import Random

from torch.optim import Optimizer

from course_utils.grading.compare import Rule, distance_in_tolerances
from course_utils.grading.question import Case, Question, Tolerance
from course_utils.grading.values import DEEPEST, UnfitError, fold, int_if_whole, plain, respell

ACCOUNT_TOLERANCE = Tolerance(relative=1e-3, absolute=0.0)
_CONFUSIONS = {
    "megabytes (10⁶ bytes) and mebibytes (2²⁰ bytes) are mixed up": 2**20 / 10**6,
    "kilobytes (10³ bytes) and kibibytes (2¹⁰ bytes) are mixed up": 2**10 / 10**3,
    "gigabytes (10⁹ bytes) and gibibytes (2³⁰ bytes) are mixed up": 2**30 / 10**9,
    "the figure is off by a factor of 2²⁰: bytes and MiB are mixed up": 2.0**20,
    "the figure is off by a factor of 10⁶: bytes and MB are mixed up": 1e6,
    "the figure is off by a factor of 2³⁰: bytes and GiB are mixed up": 2.0**30,
    "the figure is off by a factor of 10⁹: bytes and GB are mixed up": 1e9,
}
_BITS = {"the figure is off by a factor of 8: bits and bytes are mixed up": 8.0}


def function(oracle: Callable, **fields) -> Question:
    """A function against `oracle`; both are called with a case's inputs by name.

    Values: `result` (a tuple as a list), or the names of a dict that is returned.

    >>> about = {"title": "Twice", "points": 1, "difficulty": 1, "minutes": 2, "hints": ("add", "x + x", "return x + x")}
    >>> case = Case("three", {"x": 3})
    >>> question = function(lambda x: 2 * x, id="twice", answer="twice", public=lambda random: [case], **about)
    >>> question.run(lambda x: x**2, case.inputs), question.expected(case.inputs)
    ({'result': 9}, {'result': 6})
    """

    def call(answer: Callable, inputs: dict) -> dict:
        result = answer(**inputs)
        return result if type(result) is dict else {"result": result}

    return Question(run=call, expected=lambda inputs: plain(call(oracle, inputs)), **_extend_replaces(oracle, fields))


def stream(oracle: Callable, *, hyper: Mapping[str, tuple] | None = None, **fields) -> Question:
    """An optimizer class over streams of gradients, against the class `oracle`; made as `answer(params_or_groups, **options)`.

    `hyper` names the hyper-parameters that groups differ in, each with values to draw from; by default Adam's. Without
    `public` and `hidden` the cases are those of `streams.cases`. Values: every parameter after every step, whether `p.grad`
    was left alone, and what the state holds. An oracle of torch's is replaced, with all that it inherits from.
    """
    from course_utils.grading import streams

    def cases(random: Random) -> list[Case]:
        return streams.cases(random, hyper or streams.ADAM)

    defaults = {"public": cases, "hidden": cases, "tolerance": streams.TOLERANCE, "counted": ("state",)}
    defaults["recognize"] = streams.recognize_changed_gradients
    fields = defaults | _extend_replaces(oracle, fields)
    return Question(run=streams.drive, expected=lambda inputs: plain(streams.drive(oracle, inputs)), **fields)


def collective(
    oracle: Callable[[int, list[dict]], object],
    *,
    use: Callable | None = None,
    sends: Callable[[int, list[dict]], Mapping] | None = None,
    in_place: tuple[str, ...] = (),
    **fields,
) -> Question:
    """A function that every rank of a process group calls at once, each with inputs of its own, judged by values and sends.

    Cases come from `ranks.case(name, {call: [inputs of rank 0, of rank 1, …]})`; all calls of a case have as many ranks, and
    are made in one start of them. `oracle(rank, inputs of all ranks)` gives the right values of a rank. Inputs named in
    `in_place` are to be changed, all others must stay. `use(answer, **inputs)` is what a rank does with the answer; by default
    it calls it. `sends(rank, inputs of all ranks)` says how much a rank may send, by the names `ranks.MESSAGES`, `BYTES`,
    `PARTNERS` and `COLLECTIVES`, or by names of what `use` counts itself: a float is the most that is allowed, anything else must
    be met. Values: by call and rank, with the counts that `sends` names.
    """
    from course_utils.grading import ranks

    apply = use or (lambda answer, **inputs: answer(**inputs))
    replaces = fields.get("replaces", ())
    allowed = sends or (lambda rank, inputs_by_rank: {})

    def run(answer: Callable, inputs: dict) -> dict:
        return ranks.run_on_ranks(apply, answer, inputs["calls"], allowed, in_place, replaces)

    def right(rank: int, inputs_by_rank: list[dict]) -> dict:
        result = oracle(rank, copy.deepcopy(inputs_by_rank))
        values = result if type(result) is dict else {"result": result}
        return {**plain(values), ranks.LEFT: True, **ranks.expected_counts(allowed(rank, inputs_by_rank))}

    def expected(inputs: dict) -> dict:
        return {
            call: {f"rank {rank}": right(rank, inputs_by_rank) for rank in range(len(inputs_by_rank))}
            for call, inputs_by_rank in inputs["calls"].items()
        }

    defaults = {"counted": (ranks.MESSAGES, ranks.BYTES)}
    return Question(run=run, expected=expected, ranks=True, **(defaults | fields))


def account(
    numbers: Mapping[str, tuple[float | Callable[[], float], str]],
    *,
    forgotten: Mapping[str, Mapping[str, float]] | None = None,
    bits: bool = True,
    tolerance: Tolerance = ACCOUNT_TOLERANCE,
    **fields,
) -> Question:
    """Predicted numbers: `{name: (value or function that returns it, unit)}`. The answer is a dict of these names.

    If there is one number, the answer may be that number alone. Every number earns its share. A mix-up of 1000 and 1024 is
    recognized, and so is a forgotten summand: `forgotten={number: {summand: its value}}`. With `bits=False` a factor of 8 is not
    taken for bits instead of bytes, because it may be a number of ranks. The right value is never shown.
    """
    units = {name: unit for name, (_, unit) in numbers.items()}
    confusions = _CONFUSIONS | (_BITS if bits else {})
    # `run` is sent to the learner's process and may know only these.
    names = tuple(numbers)
    answer_name = fields["answer"]

    def run(answer: object, inputs: dict) -> dict:
        if type(answer) is not dict and len(names) > 1:
            raise UnfitError(f"`{answer_name}` is not a dict; give one with the keys {', '.join(map(repr, names))}.")
        values = _spell_as_known(answer, names) if type(answer) is dict else {names[0]: answer}
        return {name: _to_number(values[name]) for name in [inputs["number"]] if name in values}

    def expected(inputs: dict) -> dict:
        value = numbers[inputs["number"]][0]
        return {inputs["number"]: value() if callable(value) else value}

    def recognize(expected: dict, actual: dict) -> str | None:
        (name, value), *_ = expected.items()
        summands = (forgotten or {}).get(name, {})
        slips = {f"`{name}` leaves out the {summand}.": (value - size,) for summand, size in summands.items()}
        for meaning, factor in confusions.items():
            slips[f"`{name}` is asked in {units[name]}: {meaning}."] = value * factor, value / factor
        return _recognize_slip(value, actual.get(name), slips, tolerance)

    def public(_: object) -> list[Case]:
        labels = {name: name if name.split()[-1] == unit else f"{name} in {unit}" for name, unit in units.items()}
        return [Case(labels[name], {"number": name}) for name in units]

    defaults = {"parts": True, "reveal": False, "recognize": recognize, "tolerance": tolerance}
    return Question(run=run, expected=expected, public=public, **(defaults | fields))


def choice(
    options: Mapping[str, str],
    right: str,
    *,
    reasons: Mapping[str, str],
    reason: str,
    why_not: Mapping[str, str] | None = None,
    **fields,
) -> Question:
    """One of `options` and the one of `reasons` that decides: the answer is a pair of their keys, such as `("b", "2")`.

    `why_not` says of a wrong key why it is wrong; a right choice for a wrong reason is recognized. The right key is not shown.
    """

    def run(answer: object, _: object) -> dict:
        pair = answer if type(answer) in (tuple, list) else (answer,)
        if len(pair) > 2:
            raise TypeError("give a pair: one choice and one reason")
        if any(part is ... for part in pair):
            return {"choice": ...}
        # A reason's key is a digit in quotes, and may be given as a number.
        keys = [str(part) if type(part) is int and abs(part) < 100 else part for part in pair]
        return dict(zip(("choice", "reason"), [*keys, None, None], strict=False))

    def recognize(_: object, actual: dict) -> str | None:
        keys = {}
        for part, allowed in (("choice", options), ("reason", reasons)):
            key = actual.get(part)
            if key is None:
                return f"The {part} is missing: answer with a pair of strings, the choice and the reason."
            keys[part] = next((option for option in allowed if type(key) is str and fold(key) == option), key)
            if type(key) is not str or keys[part] not in allowed:
                return f"The {part} {key!r} is not one of {', '.join(map(repr, allowed))}: answer with a pair of these strings."
        if keys["choice"] == right:
            return (why_not or {}).get(keys["reason"], "The choice is right; the reason is another.")
        return (why_not or {}).get(keys["choice"])

    defaults = {"reveal": False, "recognize": recognize, "public": lambda _: [Case("choice and reason", {})]}
    return Question(run=run, expected=lambda _: {"choice": right, "reason": reason}, **(defaults | fields))


def design(rules: Mapping[str, Callable[[object], str | None]], *, words: Collection[str] = (), **fields) -> Question:
    """A free design, scored by rule: every rule returns a sentence on what is wrong, or None, and earns its share.

    A rule gets the answer as plain values (numbers, strings, lists, dicts; a tensor of one number is that number, 7.0 is 7) and
    runs in the judge's process. The sentence continues after the answer's name: "`my_design` …". `words` are the names and
    strings that the rules know; the answer may have them in other letter case.

    >>> about = {"title": "A batch", "points": 2, "difficulty": 1, "minutes": 2, "hints": ("halve", "try 4", "batch = 4")}
    >>> rules = {"fits": lambda batch: None if batch <= 8 else "is too large", "even": lambda batch: None}
    >>> question = design(rules, id="batch", answer="batch", **about)
    >>> [case.name for case in question.cases()]
    ['fits', 'even']
    >>> question.expected({"rule": "fits"})["batch"].broken(question.run(16.0, {})["batch"])
    'is too large'
    """
    name = fields["answer"]
    spellings = tuple(words)

    defaults = {"public": lambda _: [Case(rule, {"rule": rule}) for rule in rules], "parts": True}
    return Question(
        run=lambda answer, inputs: {name: _to_numbers(answer, spellings)},
        expected=lambda inputs: {name: Rule(rules[inputs["rule"]])},
        **(defaults | fields),
    )


def kills(subject: str, *, right: Mapping[str, str], wrong: Mapping[str, str], **fields) -> Question:
    """A test, `answer(subject)`, that refuses wrong answers to another question and accepts right ones.

    `right` and `wrong` are the public zoo: sources of cells by name, each defining `subject`, a class or a function. The hidden
    one is `zoo`, a `Zoo` in the question's hidden part. A failed assertion or False refuses; any other exception is a
    fault of the test. Each wrong answer that is refused earns its share of the points, but all are lost where a right one is
    refused. Values: `verdict`, `"accepted"` or `"refused"`.
    """
    from course_utils.grading import subjects

    right_verdicts = subjects.verdicts(right, wrong)

    def run(answer: Callable, inputs: dict) -> dict:
        return {subjects.VERDICT: subjects.verdict_of(answer, subjects.define(inputs["source"], subject))}

    def recognize(expected: dict, actual: dict) -> str | None:
        if expected[subjects.VERDICT] == subjects.ACCEPTED and actual.get(subjects.VERDICT) == subjects.REFUSED:
            return "A right answer is refused, and then no wrong one counts: ask only for what must hold."
        return None

    defaults = {"public": lambda _: subjects.cases(right, wrong), "parts": True, "share": subjects.share_killed}
    fields = defaults | fields
    return Question(run=run, expected=lambda inputs: right_verdicts[inputs["source"]], recognize=recognize, **fields)


def _extend_replaces(oracle: object, fields: dict) -> dict:
    """The fields, with an oracle of torch's and its base classes added to `replaces` by their public names."""
    objects = oracle.__mro__ if isinstance(oracle, type) else [oracle]
    modules = {item: str(getattr(item, "__module__", "")) for item in objects if item is not Optimizer}
    names = []
    for item, module in modules.items():
        if module.startswith("torch."):
            package = module.rpartition(".")[0]
            is_exported = getattr(sys.modules[package], item.__name__, None) is item
            names.append(f"{package if is_exported else module}.{item.__name__}")
    return {**fields, "replaces": (*names, *fields.get("replaces", ()))}


def _to_number(value: object) -> object:
    """The number in a tensor or an array of one, or of a fraction; anything else as it is."""
    if type(value) in (Fraction, Decimal):
        return float(value)
    is_scalar = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    return value.item() if is_scalar else value


def _to_numbers(value: object, spellings: Collection[str], depth: int = 0) -> object:
    """`_to_number` inside of dicts and lists too, with whole numbers as ints, and strings as they are in `spellings`."""
    if depth > DEEPEST:
        return value
    if type(value) is dict:
        return {key: _to_numbers(item, spellings, depth + 1) for key, item in _spell_as_known(value, spellings).items()}
    if type(value) in (list, tuple):
        return [_to_numbers(item, spellings, depth + 1) for item in value]
    if type(value) is str:
        return next((word for word in spellings if fold(word) == fold(value)), value)
    return int_if_whole(_to_number(value))


def _spell_as_known(values: dict, names: Collection[str]) -> dict:
    return respell(values, names) if all(type(name) is str for name in values) else values


def _recognize_slip(right: float, actual: object, slips: Mapping[str, tuple], tolerance: Tolerance) -> str | None:
    """The sentence in `slips` whose values include the wrong number of an account."""
    if type(actual) not in (int, float) or not actual or not right:
        return None
    for sentence, values in slips.items():
        if any(distance_in_tolerances(value, actual, tolerance) <= 1 for value in values):
            return sentence
    return None
