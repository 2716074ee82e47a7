"""Running an answer: an outcome whatever it does, within its time, with inputs and random numbers left as they were."""

import linecache
import random
import threading
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from sample_question import doubling

from course_utils import optim
from course_utils.grading import run
from course_utils.grading.judge import Outcome, explain
from course_utils.grading.question import UNTOUCHED, Case
from course_utils.grading.run import CASE_SECONDS, is_untouched, run_case


def cell(source: str, name: str = "double"):
    """The object that a notebook's cell defines as `name`."""
    file = f"<cell {hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"__name__": "__main__"}
    exec(compile(source, file, "exec"), names)
    return names[name]


def outcome(source: str, seconds: float = CASE_SECONDS, **inputs):
    return run_case(doubling(), cell(source), Case("c", inputs or {"x": 1.0}), seconds)


def test_values_come_back_and_repeat():
    assert outcome("def double(x): return 2 * x") == Outcome("values", {"result": 2.0})


def test_the_stub_is_untouched_and_a_missing_feature_is_not():
    assert outcome(f"def double(x):\n    raise NotImplementedError({UNTOUCHED!r})").kind == "untouched"
    assert outcome("def double(x):\n    raise NotImplementedError('later')").kind == "exception"
    assert outcome("double = ...").kind == "untouched"
    assert outcome("def double(x): return {'a': [...]}").kind == "untouched"


def test_an_exception_shows_the_learners_line_only():
    seen = outcome("import torch\ndef double(x):\n    y = x\n    return torch.ones(2) @ torch.ones(3)")
    assert seen.kind == "exception"
    assert seen.text.startswith("RuntimeError: ")
    assert "\n" not in seen.text
    assert seen.line == "line 4: `return torch.ones(2) @ torch.ones(3)`"


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("def double(): return 1", "unexpected keyword argument 'x'"),
        ("def double(x, y): return 1", "missing 1 required positional argument: 'y'"),
        ("double = 5", "'int' object is not callable"),
    ],
)
def test_a_wrong_signature_is_not_an_error_in_the_answer(source, part):
    seen = outcome(source)
    assert seen.kind == "signature"
    assert part in seen.text


def test_a_type_error_inside_the_answer_is_an_exception():
    assert outcome("def double(x):\n    return len(x)").line == "line 2: `return len(x)`"


def test_a_line_is_cut_and_its_back_ticks_do_no_harm():
    assert outcome("def double(x):\n    return 1 / 0  # `").line == "line 2"
    long = outcome(f"def double(x):\n    return 1 / 0 + {'1 + ' * 100}1").line
    assert long.startswith("line 2: `return 1 / 0 + 1 + 1")
    assert long.endswith("…`")
    assert len(long) < 140


def test_a_type_error_of_what_the_answer_returned_is_no_wrong_signature():
    subscripted = replace(doubling(), run=lambda answer, inputs: {"result": answer(**inputs)["key"]})
    outcome = run_case(subscripted, cell("def double(x): return 'text'"), Case("c", {"x": 1.0}))
    assert (outcome.kind, outcome.line) == ("exception", "")
    assert "compare what it takes and what it returns with the statement" in explain(subscripted, outcome)


@pytest.mark.parametrize("body", ["pass", "try:\n            pass\n        except Exception:\n            pass"])
def test_an_endless_loop_ends(body):
    seen = outcome(f"def double(x):\n    while True:\n        {body}", seconds=0.2)
    assert (seen.kind, seen.text) == ("timeout", "0.2 s")
    assert seen.line.startswith("line ")


def test_an_endless_loop_that_swallows_the_exception_once_ends_too():
    source = "def double(x):\n    try:\n        while True: pass\n    except BaseException:\n        while True: pass"
    assert outcome(source, seconds=0.2).kind == "timeout"


def test_an_endless_loop_ends_in_another_thread():
    outcomes = []
    source = "def double(x):\n    while True: pass"
    thread = threading.Thread(target=lambda: outcomes.append(outcome(source, seconds=0.2)))
    thread.start()
    thread.join(30)
    assert outcomes[0].kind == "timeout"


@pytest.mark.parametrize("statement", ["sys.exit(3)", "raise SystemExit", "raise GeneratorExit", "raise MemoryError"])
def test_no_exception_gets_out(statement):
    assert outcome(f"import sys\ndef double(x):\n    {statement}").kind == "exception"


def test_an_exception_that_cannot_be_printed_is_an_outcome():
    source = "class E(Exception):\n    def __str__(self): raise ValueError\ndef double(x): raise E"
    assert outcome(source).text == "E"


def test_an_interrupt_by_the_learner_gets_out():
    with pytest.raises(KeyboardInterrupt):
        outcome("def double(x): raise KeyboardInterrupt")


def test_changed_inputs_are_named():
    x, y = torch.ones(2), [1, [2]]
    seen = outcome("def double(x, y, z):\n    x += 1\n    y[1].append(3)\n    return 0", x=x, y=y, z={"a": 1})
    assert seen.mutated == ("x", "y")
    assert torch.equal(x, torch.ones(2))
    assert y == [1, [2]]


@pytest.mark.parametrize("change", ["x.requires_grad_()", "x.float().requires_grad_()", "x.grad = torch.ones(2)"])
def test_an_input_that_asks_for_a_gradient_or_has_one_is_changed(change):
    assert outcome(f"import torch\ndef double(x):\n    {change}\n    return 0", x=torch.ones(2)).mutated == ("x",)


def test_an_input_in_the_hands_of_autograd_is_left_alone():
    source = "def double(x):\n    y = x.detach().requires_grad_()\n    y.sum().backward()\n    return y.grad"
    assert outcome(source, x=torch.ones(2)).mutated == ()


def test_random_numbers_repeat_and_go_on_as_before():
    source = "import random, torch\ndef double(x): return [random.random(), torch.rand(()).item()]"
    torch.manual_seed(5)
    random.seed(5)
    state, py = torch.get_rng_state(), random.getstate()
    first = outcome(source)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == py
    torch.rand(3)
    assert outcome(source).values == first.values


def test_an_imported_answer_is_not_the_learners_own():
    for answer, source in ((torch.optim.AdamW, "torch.optim.adamw"), (optim.AdamW, "course_utils.optim.adam")):
        assert run_case(doubling(), answer, Case("c", {"x": 1.0})) == Outcome("foreign", text=source)


def test_the_stub_is_known_by_its_source():
    assert is_untouched("def f(x):\n    return x  \n\n", "def f(x):\n    return x")
    assert not is_untouched("def f(x):\n    return 2 * x", "def f(x):\n    return x")


def test_nobody_waits_for_the_same_ranks_again(monkeypatch):
    calls, cases = [], doubling().cases()
    monkeypatch.setattr(run, "run_case", lambda *_: calls.append(_) or Outcome("stuck", text="not done"))
    outcomes = run.run_cases(doubling(), lambda x: x, cases)
    assert len(calls) == 1
    assert [outcome.kind for outcome in outcomes] == ["stuck"] * len(cases)


def test_the_clock_starts_when_ranks_can(monkeypatch):
    order = []
    monkeypatch.setattr(run, "wait_for_server", lambda: order.append("ranks can start"))
    monkeypatch.setattr(run, "time_limit", lambda seconds: order.append("clock") or nullcontext())
    run_case(replace(doubling(), ranks=True), lambda x: 2 * x, Case("", {"x": 1.0}))
    assert order == ["ranks can start", "clock"]


def test_the_inputs_of_a_case_are_copied_with_what_they_share():
    """Tensors that share memory do so in the copy too, and share none with the original."""
    base, vector = torch.arange(6.0).view(2, 3), torch.arange(3.0)
    inputs = {"base": base, "turned": base.T, "again": base, "alone": [vector, vector[1:]], "plain": torch.ones(2)}

    def overwrite(_, copies):
        assert copies["again"] is copies["base"]
        copies["base"].zero_()
        copies["alone"][0].zero_()
        copies["plain"].zero_()
        return {"turned": copies["turned"], "tail": copies["alone"][1]}

    outcome = run_case(replace(doubling(), run=overwrite), abs, Case("c", inputs))
    assert outcome.kind == "values", outcome
    assert not outcome.values["turned"].any()
    assert not outcome.values["tail"].any()
    assert (base.sum(), vector.sum(), inputs["plain"].sum()) == (15, 3, 2)
