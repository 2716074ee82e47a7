"""A question of each kind to begin with: small, complete, and meant to be changed line by line into another."""

from typing import NamedTuple

from course_utils.errors import CourseError
from course_utils.grading.release import facts
from course_utils.grading.source import marker, run_question

_FIELDS = """\
    id="{id}",
    title="{title}",
    points=1,
    difficulty=1,
    minutes=5,
    hints=("A nudge.", "An outline.", "Nearly the code."),
"""


class _Skeleton(NamedTuple):
    """The parts of a question; `code` has places for its fields, its braces are doubled."""

    title: str
    statement: str
    code: str
    answer: str


_FUNCTION = _Skeleton(
    "Twice",
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

_STREAM = _Skeleton(
    "Descent",
    "Write the optimizer class `Descent`, a subclass of `torch.optim.Optimizer` that does what `torch.optim.SGD` does with `lr`.",
    '''\
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
variants = [
    Variant(
        "in one call",
        """\\
import torch


class Descent(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {{"lr": lr}})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if moved:
                torch._foreach_add_(moved, [p.grad for p in moved], alpha=-group["lr"])
""",
    )
]
# END HIDDEN''',
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

_ACCOUNT = _Skeleton(
    "A thousand parameters",
    "How many bytes do 1,000 parameters take in 32-bit floats, and how many with their gradients?",
    """\
from course_utils.grading import Mistake, Tolerance, Variant, account

question = account(
    {{"P": (1000 * 4, "bytes"), "P and G": (1000 * 4 + 1000 * 4, "bytes")}},
    forgotten={{"P and G": {{"gradients": 4000}}}},
    tolerance=Tolerance(0, 0),
{fields}    answer="my_bytes",
)
# HIDDEN
mistakes = [Mistake("16 bits", "These are 16-bit numbers.", (("4000", "2000"), ("8000", "4000")))]
variants = [Variant("as products", 'my_bytes = {{"P": 1000 * 4, "P and G": 2 * 1000 * 4}}\\n')]
# END HIDDEN""",
    """\
### BEGIN SOLUTION
my_bytes = {"P": 4000, "P and G": 8000}
### END SOLUTION
### BEGIN STUB
# my_bytes = {"P": ..., "P and G": ...}
### END STUB""",
)

_COST = _Skeleton(
    "One all-reduce",
    "Write `reduced(gradients, all_reduce)`. `gradients` is a list of float32 tensors of any shapes; "
    "`all_reduce(tensor)` returns the sum of that tensor over all workers. Return the list of the summed gradients, each "
    "in its shape, with one call of `all_reduce`, and send no byte more than the gradients have.",
    '''\
import torch

from course_utils.grading import Case, Mistake, Variant, cost


def count(answer, inputs):
    sent = []

    def all_reduce(tensor):
        sent.append(tensor.numel() * tensor.element_size())
        return inputs["workers"] * tensor  # every worker has the same gradients

    result = answer(inputs["gradients"], all_reduce)
    return {{"result": result, "collectives": len(sent), "bytes sent": sum(sent)}}


def right(inputs):
    gradients = inputs["gradients"]
    summed = [torch.stack([gradient] * inputs["workers"]).sum(0) for gradient in gradients]
    return {{"result": summed, "collectives": 1, "bytes sent": sum(4 * gradient.numel() for gradient in gradients)}}


def drawn(random, name, *shapes):
    generator = torch.Generator().manual_seed(random.getrandbits(31))
    gradients = [torch.randint(-9, 10, shape, generator=generator).float() for shape in shapes]
    return Case(name, {{"gradients": gradients, "workers": random.randint(2, 5)}})


def public(random):
    return [
        drawn(random, "one vector", (3,)),
        drawn(random, "a layer", (2, 3), (2,)),
        drawn(random, "a number", (), (4,)),
    ]


question = cost(
    count,
    right,
    limited=("collectives", "bytes sent"),
{fields}    answer="reduced",
    public=public,
)
# HIDDEN


def hidden(random):
    return [drawn(random, f"drawn {{i}}", (random.randint(1, 9), 2), (random.randint(1, 9),)) for i in range(5)]


JOINED = "torch.cat([g.flatten() for g in gradients])"
mistakes = [
    Mistake(
        "a call for each",
        "This calls `all_reduce` once for each gradient; join them first.",
        ((f"all_reduce({{JOINED}})", "torch.cat([all_reduce(g).flatten() for g in gradients])"),),
    ),
    Mistake("flat", "The gradients come back flat; each must have its shape again.", (("part.view_as(g)", "part"),), 1),
    Mistake(
        "twice the bytes",
        "This sends 64-bit numbers, twice the bytes of the gradients.",
        ((JOINED, f"{{JOINED}}.double()"), ("view_as(g)", "view_as(g).float()")),
        2,
    ),
]
variants = [
    Variant(
        "by position",
        """\\
import torch


def reduced(gradients, all_reduce):
    flat, start, result = all_reduce(torch.hstack([g.reshape(-1) for g in gradients])), 0, []
    for g in gradients:
        result.append(flat[start : start + g.numel()].reshape(g.shape))
        start += g.numel()
    return result
""",
    )
]
# END HIDDEN''',
    '''\
import torch


def reduced(gradients, all_reduce):
    """The gradients summed over all workers, a list of tensors, by one call of `all_reduce`."""
    ### BEGIN SOLUTION
    flat = all_reduce(torch.cat([g.flatten() for g in gradients]))
    parts = flat.split([g.numel() for g in gradients])
    return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]
    ### END SOLUTION''',
)

_CHOICE = _Skeleton(
    "An even prime",
    'Is 2 even? **a** Yes. **b** No. And why? **1** It is 2 · 1. **2** It is prime. Answer with a pair such as `("a", "2")`.',
    """\
from course_utils.grading import Mistake, Variant, choice

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
variants = [Variant("a list", 'my_answer = ["a", "1"]\\n')]
# END HIDDEN""",
    'my_answer = ("a", "1")  ### SOLUTION',
)

_DESIGN = _Skeleton(
    "A batch in pieces",
    "A machine holds the activations of at most 10 examples. Choose `batch`, the examples of one forward pass, and "
    "`accumulation`, the passes of one step, so that a step sees 32 examples in at most 8 passes. Both are whole "
    "numbers from 1 on.",
    """\
from course_utils.grading import Mistake, Variant, design


def fits(recipe):
    return None if 1 <= recipe["batch"] <= 10 else f"takes {{recipe['batch']}} examples at a time, where 1 to 10 fit"


def sees_all(recipe):
    seen = recipe["batch"] * recipe["accumulation"]
    return None if seen == 32 else f"sees {{seen}} examples in a step, where 32 are asked"


def is_quick(recipe):
    passes = recipe["accumulation"]
    return None if passes in range(1, 9) else f"takes {{passes}} passes, where 1 to 8 are allowed"


question = design(
    {{"it fits": fits, "a step sees 32 examples": sees_all, "few passes": is_quick}},
{fields}    answer="my_design",
)
# HIDDEN
mistakes = [
    Mistake("all at once", "32 examples at once do not fit; take them in pieces.", (("8", "32"), ("4", "1"))),
    Mistake("no pieces", "8 examples are a quarter of the step; accumulate four passes.", (("4", "1"),), 1),
]
variants = [Variant("smaller pieces", 'my_design = {{"batch": 4, "accumulation": 8}}\\n')]
# END HIDDEN""",
    """\
### BEGIN SOLUTION
my_design = {"batch": 8, "accumulation": 4}
### END SOLUTION
### BEGIN STUB
# my_design = {"batch": ..., "accumulation": ...}
### END STUB""",
)

KINDS = {
    "function": _FUNCTION,
    "stream": _STREAM,
    "account": _ACCOUNT,
    "cost": _COST,
    "choice": _CHOICE,
    "design": _DESIGN,
}


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
    title, statement, asked, answer = KINDS[kind]
    code = f"# QUESTION {name}\n{asked.format(fields=_FIELDS.format(id=name, title=title))}"
    question = run_question(f"{code}\n", name)["question"]
    added = [
        _text(f"{name}-statement", f"## {name[1:]}. {title}\n\n{facts(question)}\n\n{statement}"),
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
