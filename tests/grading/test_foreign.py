"""What is replaced cannot be used by any way that leads to it, and is as before afterwards."""

import importlib
import sys

import pytest
import torch
from sample_question import FIELDS, define, grade_answer

from course_utils import optim
from course_utils.errors import CourseError
from course_utils.grading import function
from course_utils.grading.foreign import ForeignError, disable, find_foreign
from course_utils.grading.kinds import stream
from course_utils.grading.question import Case

NAMES = ("torch.optim.AdamW", "torch.optim.Adam", "course_utils.optim", "bitsandbytes")
OWN_STEP = torch.optim.AdamW.step
FUNCTIONAL = importlib.import_module("torch.optim.adamw").adamw


def parameters():
    return [torch.ones(3, requires_grad=True)]


def ready():
    """An optimizer that was made before, and a gradient."""
    [p] = parameters()
    p.grad = torch.ones(3)
    return torch.optim.AdamW([p])


def update_by(function):
    """An update by a function of tensors, which has no optimizer."""
    tensors = [[torch.ones(3)] for _ in range(4)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    function(*tensors, [], [torch.ones(())], **options, amsgrad=False, maximize=False)


USES = {
    "make it": lambda _: torch.optim.AdamW(parameters()),
    "make what it inherits": lambda _: torch.optim.Adam(parameters(), decoupled_weight_decay=True),
    "inherit": lambda _: type("Mine", (torch.optim.AdamW,), {})(parameters()),
    "inherit the course's": lambda _: type("Mine", (optim.AdamW,), {})(parameters()),
    "step one that was made before": lambda optimizer: optimizer.step(),
    "its step, taken before": lambda optimizer: OWN_STEP(optimizer),
    "what its step wraps": lambda optimizer: OWN_STEP.__wrapped__(optimizer),
    "its functional form, taken before": lambda _: update_by(FUNCTIONAL),
}


@pytest.mark.parametrize("use", USES)
def test_every_way_to_what_is_replaced_is_closed_and_opened_again(use):
    optimizer = ready()
    with disable(NAMES), pytest.raises(ForeignError, match=r"torch|course_utils\.optim"):
        USES[use](optimizer)
    with torch.no_grad():
        USES[use](ready())


def test_a_module_that_is_not_loaded_can_be_imported_and_is_disabled_in_the_next_block(monkeypatch):
    monkeypatch.delitem(sys.modules, "mailbox", raising=False)
    with disable(["mailbox"]):
        mailbox = importlib.import_module("mailbox")
    with disable(["mailbox"]), pytest.raises(ForeignError, match=r"mailbox\.Maildir"):
        mailbox.Maildir("here")


def test_a_block_in_a_block_refuses_too_and_ends_alone():
    names = ["torch.nn.functional.scaled_dot_product_attention", "torch.optim.AdamW"]
    inputs = 3 * [torch.ones(1, 1)]
    with disable(names):
        for _ in range(2):
            with disable(names), pytest.raises(ForeignError, match="scaled_dot_product_attention"):
                torch.nn.functional.scaled_dot_product_attention(*inputs)
            with pytest.raises(ForeignError, match="AdamW"):
                torch.optim.AdamW(parameters())
    assert torch.equal(torch.nn.functional.scaled_dot_product_attention(*inputs), inputs[0])
    torch.optim.AdamW(parameters())


def test_the_rest_of_the_library_works_meanwhile():
    with disable(NAMES):
        torch.optim.SGD(parameters(), lr=0.1).step()
        torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD(parameters(), lr=0.1), 0.5)
        assert issubclass(type("Mine", (torch.optim.Optimizer,), {}), torch.optim.Optimizer)


def test_a_function_that_remembers_its_results_forgets_them():
    book = importlib.import_module("course_utils.optim.codebook").dynamic_codebook
    before = book(True)
    with disable(["course_utils.optim.codebook"]), pytest.raises(ForeignError, match="dynamic_codebook"):
        book(True)
    assert torch.equal(book(True), before)


def test_a_name_that_is_nothing_of_the_kind_is_said():
    with pytest.raises(CourseError, match=r"torch\.float32 cannot be replaced"), disable(["torch.float32"]):
        pass


FINDINGS = {
    "import subprocess\nsubprocess.run([])": "subprocess (a way to another's work)",
    "import os\nos.system('true')": "os.system (a way to another's work)",
    "get_ipython().system('true')": "get_ipython().system (a way to another's work)",
    "def f(): return exec('1')": "exec (a way to another's work)",
    "from importlib import reload": "importlib.reload (a way to another's work)",
    "torch.ops.aten._fused_adamw_(x)": "torch.ops.aten._fused_adamw_ (a way to another's work)",
    "def f():\n    import bitsandbytes.optim as b": "bitsandbytes.optim",
    "def f():\n    from course_utils import optim": "course_utils.optim",
}


@pytest.mark.parametrize("source", FINDINGS)
def test_a_cell_that_reaches_for_anothers_work_is_found(source):
    assert find_foreign(source, NAMES) == FINDINGS[source]


@pytest.mark.parametrize(
    "source",
    [
        "import bitsandbytes\nimport torch.optim.adamw",
        "def f():\n    import course_utils.optimal, math",
        "def f(model): model.eval(); return re.compile('a'), Path('a').open()",
        "torch.optim.SGD(p, fused=True)",
        "def f(",
    ],
)
def test_a_cell_of_other_things_is_nobody_elses(source):
    assert find_foreign(source, NAMES) == ""


def test_builders_know_what_their_oracle_replaces():
    assert stream(torch.optim.AdamW, **FIELDS).replaces == ("torch.optim.AdamW", "torch.optim.Adam")
    assert stream(torch.optim.Adafactor, replaces=("x",), **FIELDS).replaces == ("torch.optim.Adafactor", "x")
    assert stream(optim.AdamW, **FIELDS).replaces == ()
    softmin = function(torch.nn.functional.softmin, public=lambda _: [], **FIELDS)
    assert softmin.replaces == ("torch.nn.functional.softmin",)


def test_a_function_of_a_library_is_no_answer_by_another_name():
    """An answer that calls the library's function is refused; one that computes the same itself is right."""
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    cases = [Case("two", {"input": x, "dim": 0})]
    question = function(torch.nn.functional.softmin, public=lambda _: cases, **FIELDS)
    original = "def answer(input, dim): return (-input).softmax(dim)"
    borrowed = "def answer(input, dim): return torch.nn.functional.softmin(input, dim=dim)"
    assert grade_answer(question, define(original)).passed
    assert {verdict.kind for verdict in grade_answer(question, define(borrowed)).verdicts} == {"foreign"}
    assert torch.nn.functional.softmin(x, 0).sum() == 1
