"""A question to begin with: small, complete, and meant to be changed line by line into another."""

from course_utils.errors import CourseError
from course_utils.grading.release import facts
from course_utils.grading.source import marker, run_question

_FIELDS = """\
    id="{id}",
    title="Twice",
    points=1,
    difficulty=1,
    minutes=5,
    hints=("A nudge.", "An outline.", "Nearly the code."),
"""

_FUNCTION = (
    "Write `twice(x)`, which returns 2·x. `x` is a tensor of any shape; leave it as it is.",
    """\
import torch

from course_utils.grading import Case, Mistake, Variant, function


def oracle(x):
    return x + x


def drawn(random, name, shape):
    generator = torch.Generator().manual_seed(random.getrandbits(31))
    return Case(name, {{"x": torch.randn(shape, generator=generator, dtype=torch.float64)}})


def public(random):
    return [drawn(random, "a vector", (3,)), drawn(random, "a matrix", (2, 3))]


question = function(
    oracle,
{fields}    answer="twice",
    public=public,
)
# HIDDEN


def hidden(random):
    return [drawn(random, f"drawn {{i}}", (random.randint(1, 9),)) for i in range(5)]


mistakes = [
    Mistake("square", "This is the square of x.", (("2 * x", "x**2"),)),
    Mistake("changed", "This changes its input.", (("2 * x", "x.mul_(2)"),), 1),
]
variants = [Variant("a sum", "def twice(x):\\n    return x.add(x)\\n")]
# END HIDDEN""",
    '''\
def twice(x):
    """2·x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION''',
)

_STREAM = (
    "Write the optimizer class `Descent`, a subclass of `torch.optim.Optimizer` that does what `torch.optim.SGD` does with `lr`.",
    """\
import torch

from course_utils.grading import Mistake, Variant, stream

question = stream(
    torch.optim.SGD,
    hyper={{"lr": (0.3, 0.1, 0.03)}},
{fields}    answer="Descent",
)
# HIDDEN
mistakes = [
    Mistake("ascent", "This climbs: the update must be subtracted.", (("alpha=-", "alpha="),)),
    Mistake(
        "one learning rate",
        "Every group is updated with the optimizer's default.",
        (('group["lr"]', 'self.defaults["lr"]'),),
        1,
    ),
]
variants = []
# END HIDDEN""",
    '''\
import torch


class Descent(torch.optim.Optimizer):
    """θ ← θ − αg."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        """Update every parameter that has a gradient."""
        ### BEGIN SOLUTION
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"])
        ### END SOLUTION''',
)

_ACCOUNT = (
    "How many bytes do 1,000 parameters take in 32-bit floats, and how many with their gradients?",
    """\
from course_utils.grading import Mistake, Tolerance, account

question = account(
    {{"P": (1000 * 4, "bytes"), "P and G": (1000 * 4 + 1000 * 4, "bytes")}},
    forgotten={{"P and G": {{"gradients": 4000}}}},
    tolerance=Tolerance(0, 0),
{fields}    answer="my_bytes",
)
# HIDDEN
mistakes = [Mistake("16 bits", "These are 16-bit numbers.", (("4000", "2000"), ("8000", "4000 ")))]
# END HIDDEN""",
    """\
### BEGIN SOLUTION
my_bytes = {"P": 4000, "P and G": 8000}
### END SOLUTION
### BEGIN STUB
# my_bytes = {"P": ..., "P and G": ...}
### END STUB""",
)

_CHOICE = (
    'Is 2 even? **a** Yes. **b** No. And why? **1** It is 2 · 1. **2** It is prime. Answer with a pair such as `("a", "2")`.',
    """\
from course_utils.grading import Mistake, choice

question = choice(
    {{"a": "Yes", "b": "No"}},
    "a",
    reasons={{"1": "It is 2 · 1.", "2": "It is prime."}},
    reason="1",
    why_not={{"2": "It is prime, but that is not why it is even."}},
{fields}    answer="my_answer",
)
# HIDDEN
mistakes = [Mistake("no", "Primes can be even: 2 is.", (('("a", "1")', '("b", "2")'),))]
# END HIDDEN""",
    'my_answer = ("a", "1")  ### SOLUTION',
)

KINDS = {"function": _FUNCTION, "stream": _STREAM, "account": _ACCOUNT, "choice": _CHOICE}


def empty_notebook(name: str, setup: str) -> dict:
    """A solutions notebook without questions; `setup` is the source of the course's set-up cell."""
    title = f"# Exercises {name}\n\nWhat these questions are about, with a link to the chapter."
    check = f'from course_utils.grading import exercise\n\ncheck = exercise("{name}")'
    return {
        "cells": [_text("title-text", title), _code("setup", setup, "setup"), _code("check-setup", check)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def with_question(notebook: dict, kind: str) -> tuple[dict, str]:
    """The notebook with one question more at its end, and that question's id; raises `CourseError` for an unknown kind."""
    if kind not in KINDS:
        raise CourseError(f"There is no skeleton of the kind {kind!r}; there are {', '.join(KINDS)}.")
    name = _free_id(notebook["cells"])
    statement, asked, answer = KINDS[kind]
    code = f"# QUESTION {name}\n{asked.format(fields=_FIELDS.format(id=name))}"
    question = run_question(f"{code}\n", name)["question"]
    added = [
        _text(f"{name}-statement", f"## {name[1:]}. Twice\n\n{facts(question)}\n\n{statement}"),
        _code(f"{name}-question", code, "question"),
        _code(f"{name}-exercise", f"# EXERCISE {name}\n{answer}", "exercise"),
        _code(f"{name}-check", f'check("{name}")'),
    ]
    return {**notebook, "cells": [*notebook["cells"], *added]}, name


def _free_id(cells: list[dict]) -> str:
    taken = {mark[1] for cell in cells if (mark := marker(cell))}
    return next(f"q{i}" for i in range(1, len(taken) + 2) if f"q{i}" not in taken)


def _text(name: str, source: str) -> dict:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def _code(name: str, source: str, *tags: str) -> dict:
    metadata = {"tags": list(tags)} if tags else {}
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": metadata,
        "outputs": [],
        "source": source,
    }
