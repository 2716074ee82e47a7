"""Functions that all ranks call at once: judged by their values and by what is counted, with a sentence for each way to fail."""

import re

import pytest
import torch
from collective_answers import RIGHT_RINGS, RING, WRONG_RINGS
from sample_question import FIELDS, define, grade_answer, patch, sentences

from course_utils.grading import ranks
from course_utils.grading.kinds import collective


def gather(rank, by_rank):
    return torch.cat([inputs["piece"] for inputs in by_rank])


def traffic(rank, by_rank):
    others = len(by_rank) - 1
    size = others * by_rank[0]["piece"].nbytes
    return {ranks.MESSAGES: others, ranks.BYTES: float(size), ranks.PARTNERS: [(rank + 1) % len(by_rank)][:others]}


def pieces(count):
    return [{"piece": torch.arange(2.0) + rank} for rank in range(count)]


def ring(*counts, **options):
    cases = [ranks.case(f"{n} ranks", {"a vector": pieces(n)}) for n in counts or (3,)]
    return collective(gather, sends=traffic, public=lambda _: cases, **FIELDS, **options)


def answer(parameters, *lines):
    """A function of these lines, which call torch.distributed `d`."""
    return define("\n    ".join(["import torch.distributed as d\ndef answer(" + parameters + "):", *lines]))


@pytest.mark.parametrize("name", [None, *RIGHT_RINGS])
def test_a_ring_passes_in_any_style(name):
    right = define(patch(RING, *RIGHT_RINGS.get(name, ())))
    assert sentences(ring(3, 2, 1), right) == []


@pytest.mark.parametrize("name", WRONG_RINGS)
def test_a_ring_that_is_none_fails_by_name_though_its_values_are_right(name):
    *change, sentence = WRONG_RINGS[name]
    [first] = sentences(ring(), define(patch(RING, *change)))
    assert first.startswith(sentence)


def test_more_bytes_than_allowed_and_collectives_are_said():
    twice = answer("x", "d.all_reduce(x.clone())", "d.barrier()", "return x")
    limits = {ranks.BYTES: 10.0, ranks.COLLECTIVES: 0}
    question = collective(
        lambda rank, by_rank: by_rank[rank]["x"],
        sends=lambda rank, by_rank: limits,
        public=lambda _: [ranks.case("two", {"call": [{"x": torch.ones(4)} for _ in range(2)]})],
        **FIELDS,
    )
    sentence = grade_answer(question, twice).verdicts[0].sentence
    assert sentence == "`call · rank 0 · bytes sent` is 16 where at most 10 is allowed."
    limits[ranks.BYTES] = 16.0
    sentence = grade_answer(question, twice).verdicts[0].sentence
    assert sentence == "`call · rank 0 · collectives` is 1 but should be 0."


def test_only_counts_that_are_asked_for_are_values_and_those_within_a_limit_look_alike():
    """A mistake is recognized by its values, so these must not depend on the style of an answer."""
    at_once = answer("x", "d.all_reduce(x := x.clone())", "return x")
    in_parts = answer("x", "d.all_reduce((x := x.clone())[:1])", "d.all_reduce(x[1:])", "return x")
    cases = [ranks.case("two", {"call": [{"x": torch.ones(4)} for _ in range(2)]})]

    def values(answer, limits):
        question = collective(lambda *_: None, sends=lambda *_: limits, public=lambda _: cases, **FIELDS)
        return question.run(answer, cases[0].inputs)["call"]["rank 0"]

    first, second = (values(answer, {ranks.BYTES: 64.0}) for answer in (at_once, in_parts))
    assert first.keys() == second.keys() == {"result", ranks.LEFT, ranks.BYTES}
    assert first[ranks.BYTES] == second[ranks.BYTES] == 64
    assert values(at_once, {ranks.BYTES: 2.0, ranks.COLLECTIVES: 1})[ranks.BYTES] == 16


def test_what_is_to_be_changed_in_place_is_compared_and_nothing_else_may_change():
    def doubled(rank, by_rank):
        by_rank[rank]["x"].mul_(2)
        return {"x": by_rank[rank]["x"]}

    cases = [ranks.case("two", {"call": [{"x": torch.ones(2), "y": torch.ones(2)} for _ in range(2)]})]
    question = collective(doubled, in_place=("x",), public=lambda _: cases, **FIELDS)
    assert grade_answer(question, answer("x, y", "x.mul_(2)", "return {}")).passed
    verdict = grade_answer(question, answer("x, y", "y.copy_(x.mul_(2))", "return {}")).verdicts[0]
    assert "`call · rank 0 · arguments left as they were` is False" in verdict.sentence
    assert not grade_answer(question, define("def answer(x, y):\n    return {'x': 2 * x}")).passed


def test_an_answer_may_be_used_in_steps():
    def use(answer, start):
        counter = answer(start)
        return {"steps": [counter() for _ in range(2)]}

    question = collective(
        lambda rank, by_rank: {"steps": [by_rank[rank]["start"] + 1, by_rank[rank]["start"] + 2]},
        use=use,
        public=lambda _: [ranks.case("two", {"call": [{"start": 5}, {"start": 7}]})],
        **FIELDS,
    )
    counting = "import itertools\ndef answer(start):\n    numbers = itertools.count(start + 1)\n    return lambda: next(numbers)"
    assert grade_answer(question, define(counting)).passed
    sentence = grade_answer(question, define(counting.replace("start + 1", "6"))).verdicts[0].sentence
    assert sentence == "After step 1, `call · rank 1` is 6 but should be 8."


def test_what_a_use_counts_itself_may_be_limited_too():
    question = collective(
        lambda rank, by_rank: {"doubled": 2 * by_rank[rank]["x"]},
        use=lambda answer, x: {"doubled": (results := answer(x))[-1], "results": len(results)},
        sends=lambda rank, by_rank: {"results": 2.0},
        public=lambda _: [ranks.case("two", {"call": [{"x": torch.ones(2)} for _ in range(2)]})],
        **FIELDS,
    )
    assert grade_answer(question, define("def answer(x): return [2 * x]")).passed
    [verdict] = grade_answer(question, define("def answer(x): return [x, x, 2 * x]")).verdicts
    assert verdict.sentence == "`call · rank 0 · results` is 3 where at most 2 is allowed."


def test_a_collective_that_one_rank_never_calls_is_told():
    lonely = answer("piece", "d.get_rank() or d.barrier()", "return piece")
    sentence = grade_answer(ring(2), lonely).verdicts[0].sentence
    assert "it still waited in a collective when another rank had ended" in sentence


def test_a_rank_that_waits_for_nothing_is_named_with_its_line(monkeypatch):
    lonely = answer("piece", "d.recv(piece, 1 - d.get_rank())", "return piece")
    monkeypatch.setattr(ranks, "PATIENCE", 1.5)
    verdict = grade_answer(ring(2), lonely).verdicts[0]
    assert verdict.kind == "stuck"
    assert "an `isend` whose `wait()` is missing" in verdict.sentence
    assert re.search(r"TimeoutError: not done after 1\.5 s; .*\(on rank \d\) at your line 3", verdict.sentence)


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        ("raise ValueError('no luck')", "exception", r"ValueError: no luck \(on rank \d\) at your line 1"),
        ("raise NotImplementedError('write your answer here')", "untouched", "as it was handed out"),
        ("import os; os._exit(3)", "died", r"rank \d died without a word \(exit code 3\)"),
        ("import os; os.abort()", "died", "different shapes or types to one collective or message"),
        ("return object()", "unsafe", "of type"),
    ],
)
def test_what_goes_wrong_on_a_rank_has_its_own_sentence(body, kind, sentence):
    [verdict] = grade_answer(ring(), define(f"def answer(piece): {body}")).verdicts
    assert verdict.kind == kind
    assert re.search(sentence, verdict.sentence), verdict.sentence


def test_a_call_that_does_not_fit_is_told():
    [verdict] = grade_answer(ring(), define("def answer(): return 1")).verdicts
    assert verdict.kind == "signature"


def test_a_collective_that_cannot_be_counted_is_told_with_those_that_can():
    everyone = answer(
        "piece", "d.gather(piece, None if d.get_rank() else [piece.clone() for _ in range(2)])", "return piece"
    )
    [verdict] = grade_answer(ring(2), everyone).verdicts
    assert verdict.kind == "unsafe"
    assert re.search(r"What torch.distributed's gather sends cannot be counted\. Use .*`all_gather`", verdict.sentence)
