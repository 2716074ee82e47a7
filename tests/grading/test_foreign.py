"""What is replaced cannot be used by any way that leads to it, and is as before afterwards."""

import importlib
import subprocess
import sys

import pytest
import torch
from sample_question import FIELDS, define, grade_answer

from course_utils import optim
from course_utils.errors import CourseError
from course_utils.grading import function
from course_utils.grading.foreign import ForeignError, disable
from course_utils.grading.kinds import stream
from course_utils.grading.question import Case

NAMES = ("torch.optim.AdamW", "torch.optim.Adam", "course_utils.optim", "bitsandbytes")
OWN_STEP = torch.optim.AdamW.step
ADAMW = importlib.import_module("torch.optim.adamw")
FUNCTIONAL = ADAMW.adamw


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
    "torch's operator": lambda _: update_by(torch._fused_adamw_),
}


@pytest.mark.parametrize("use", USES)
def test_every_way_to_what_is_replaced_is_closed_and_opened_again(use):
    optimizer = ready()
    with disable(NAMES), pytest.raises(ForeignError, match=r"torch|course_utils\.optim"):
        USES[use](optimizer)
    with torch.no_grad():
        USES[use](ready())


def test_a_module_is_not_loaded_a_second_time(monkeypatch):
    with disable(NAMES), pytest.raises(ForeignError, match=r"torch\.optim\.adamw"):
        importlib.reload(ADAMW)
    with disable(NAMES):
        monkeypatch.delitem(sys.modules, "torch.optim.adamw")
        with pytest.raises(ForeignError, match=r"torch\.optim\.adamw"):
            importlib.import_module("torch.optim.adamw")


def test_a_package_that_is_not_loaded_is_there_and_cannot_be_imported(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "bitsandbytes"]:
        monkeypatch.delitem(sys.modules, name)
    with disable(NAMES):
        assert importlib.util.find_spec("bitsandbytes")  # who only asks gets no error
        with pytest.raises(ForeignError, match="bitsandbytes"):
            importlib.import_module("bitsandbytes.optim")


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


def test_a_function_is_found_in_a_module_that_is_not_loaded_yet(monkeypatch):
    monkeypatch.delitem(sys.modules, "wsgiref.util", raising=False)
    monkeypatch.delitem(sys.modules, "wsgiref", raising=False)
    importlib.import_module("wsgiref")
    with disable(["wsgiref.util.guess_scheme"]), pytest.raises(ForeignError, match="guess_scheme"):
        importlib.import_module("wsgiref.util").guess_scheme({})


def test_a_name_that_is_nothing_of_the_kind_is_said():
    with pytest.raises(CourseError, match=r"torch\.float32 cannot be replaced"), disable(["torch.float32"]):
        pass


def test_in_a_process_of_its_own_it_is_gone_for_good():
    """Nothing that could bring it back is kept: not even the code that it had is in memory."""
    source = f"""
import gc, types, torch
from course_utils.grading.foreign import ForeignError, forbid

def lines():
    left = [each for each in gc.get_objects() if type(each) is types.FunctionType]
    return [each.__code__.co_filename for each in left if str(each.__module__).startswith("torch.optim.adam")]

before = lines()
forbid({NAMES})
assert len(before) == len(lines()) and any("adamw.py" in file for file in before)
assert not [file for file in lines() if file.endswith(("adam.py", "adamw.py"))]
try:
    torch.optim.AdamW([torch.ones(1, requires_grad=True)])
except ForeignError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert process.stdout.strip() == "torch.optim.adamw.AdamW", process.stderr


def test_for_good_a_modules_file_cannot_be_read_and_no_program_be_started():
    source = """
import os, subprocess, sys
from course_utils.data import functions
from course_utils.grading.foreign import ForeignError, forbid

forbid(["course_utils.data.functions"])
for path in (functions.FILE, functions.__file__):
    try:
        open(path, "rb").read()
    except ForeignError as error:
        print(str(error).rpartition("/")[2])
program = [sys.executable, "-c", ""]
for start in (
    lambda: subprocess.run(program),
    lambda: os.system("true"),
    lambda: os.popen("true"),
    lambda: os.execv(program[0], program),
    lambda: os.posix_spawn(program[0], program, {}),
):
    try:
        start()
    except ForeignError:
        print("refused")
"""
    process = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert process.stdout.split() == ["functions.jsonl.gz", "functions.py", *["refused"] * 5], process.stderr


def test_for_good_a_module_not_loaded_yet_can_be_imported_but_not_used():
    source = """
from course_utils.grading.foreign import ForeignError, forbid

forbid(["mailbox", "wsgiref.handlers"])
import wsgiref.handlers
from mailbox import Maildir

for use in (
    lambda: wsgiref.handlers.CGIHandler(),
    lambda: Maildir.items(None),
    lambda: type("Mine", (Maildir,), {}),
    lambda: __import__("types").new_class("Mine", (Maildir,)),
):
    try:
        use()
    except ForeignError as error:
        print(error)
    except TypeError:
        print("TypeError")
"""
    process = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
    assert process.stdout.split() == [
        "wsgiref.handlers.CGIHandler",
        "mailbox.Maildir.items",
        "TypeError",
        "mailbox.Maildir",
    ], process.stderr


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
