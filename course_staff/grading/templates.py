"""The texts of a new question of each kind: small, complete, and meant to be changed line by line into another."""

from typing import NamedTuple


class Skeleton(NamedTuple):
    """The parts of a question; `code` has places for its fields, its braces are doubled."""

    title: str
    statement: str
    code: str
    answer: str


_FUNCTION = Skeleton(
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

_STREAM = Skeleton(
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

_ACCOUNT = Skeleton(
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

_COST = Skeleton(
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

_CHOICE = Skeleton(
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

_DESIGN = Skeleton(
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

_SCALER = Skeleton(
    "Scaler",
    "Complete the class `Scaler`, a dynamic loss scaler. It makes the decisions of `torch.amp.GradScaler`: whether the optimizer "
    "steps, and what the scale is afterwards.",
    '''\
from course_utils.grading import Mistake, Variant, scaler

question = scaler(
{fields}    answer="Scaler",
)
# HIDDEN
COUNT = "self.scale_now * self.backoff, 0"
mistakes = [
    Mistake("never skips", "A step with an overflow must be left out.", (("if not self.found:\\n", "if True:\\n"),)),
    Mistake(
        "keeps counting",
        "An overflow begins the count of good steps anew.",
        ((COUNT, COUNT.replace("0", "self.good")),),
        1,
    ),
]
variants = [
    Variant(
        "the exponent of the scale is kept",
        """\\
import math

import torch


class Scaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.exponent, self.good, self.all_finite = math.log2(init_scale), 0, None
        self.up, self.down, self.interval = math.log2(growth_factor), math.log2(backoff_factor), growth_interval

    def get_scale(self):
        return 2.0**self.exponent

    def scale(self, loss):
        return self.get_scale() * loss

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)

    def unscale_(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(gradients, self.get_scale())
        self.all_finite = all(bool(g.isfinite().all()) for g in gradients)

    def step(self, optimizer):
        if self.all_finite is None:
            self.unscale_(optimizer)
        if self.all_finite:
            optimizer.step()

    def update(self):
        self.good = self.good + 1 if self.all_finite else 0
        grows = self.good == self.interval
        self.exponent += (self.up if grows else 0) if self.all_finite else self.down
        self.good = 0 if grows else self.good
        self.all_finite = None
""",
    )
]
# END HIDDEN''',
    '''\
class Scaler:
    """Scales the loss so that small gradients survive, and backs off where large ones overflow."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.scale_now, self.good, self.found, self.unscaled = init_scale, 0, False, False
        self.growth, self.backoff, self.interval = growth_factor, backoff_factor, growth_interval

    def get_scale(self):
        return self.scale_now

    def scale(self, loss):
        return loss * self.scale_now

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)

    def unscale_(self, optimizer):
        """Divide the gradients by the scale, and remember whether one of them is not finite."""
        ### BEGIN SOLUTION
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad /= self.scale_now
                    self.found |= not p.grad.isfinite().all().item()
        self.unscaled = True
        ### END SOLUTION

    def step(self, optimizer):
        """Unscale, unless that is done, and step, unless something overflowed."""
        ### BEGIN SOLUTION
        if not self.unscaled:
            self.unscale_(optimizer)
        if not self.found:
            optimizer.step()
        ### END SOLUTION

    def update(self):
        """Back off after an overflow; grow after enough good steps in a row."""
        ### BEGIN SOLUTION
        if self.found:
            self.scale_now, self.good = self.scale_now * self.backoff, 0
        else:
            self.good += 1
            if self.good == self.interval:
                self.scale_now, self.good = self.scale_now * self.growth, 0
        self.found, self.unscaled = False, False
        ### END SOLUTION''',
)

_SHARDED = Skeleton(
    "Replicas",
    "Complete the module `Replicas`, which wraps a module on every rank of a process group. All ranks begin with the parameters "
    "of rank 0, and after `backward()` every gradient is the mean over the ranks.",
    '''\
from course_utils.grading import Mistake, Variant, sharded

question = sharded(
{fields}    answer="Replicas",
)
# HIDDEN
SENT = "            dist.broadcast(parameter.data, 0)\\n"
mistakes = [
    Mistake("a sum", "Gradients are added up: divide by the number of ranks.", ((" / dist.get_world_size()", ""),)),
    Mistake(
        "each begins as it is",
        "The ranks begin with parameters of their own: send those of rank 0 to all.",
        ((SENT, ""),),
        1,
    ),
]
variants = [
    Variant(
        "the mean of what came",
        """\\
import torch
import torch.distributed as dist


class Replicas(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self.mean)

    def mean(self, gradient):
        parts = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, gradient.contiguous())
        return torch.stack(parts).mean(0)

    def forward(self, *inputs):
        return self.module(*inputs)
""",
    )
]
# END HIDDEN''',
    '''\
import torch
import torch.distributed as dist


class Replicas(torch.nn.Module):
    """The same module on every rank, each with its share of the batch."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        ### BEGIN SOLUTION
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)
            if parameter.requires_grad:
                parameter.register_hook(self.mean)
        ### END SOLUTION

    def mean(self, gradient):
        """The gradient's mean over the ranks; called whenever this rank has a new one."""
        ### BEGIN SOLUTION
        total = gradient.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()
        ### END SOLUTION

    def forward(self, *inputs):
        return self.module(*inputs)''',
)

_COLLECTIVE = Skeleton(
    "From the left",
    "Write `from_the_left(tensor)`, which all N ranks of a process group call at once, each with a tensor of one shape. It "
    "returns the tensor of the rank before, and on rank 0 that of the last; on one rank alone, the tensor itself. Every "
    "rank sends one message, to the next rank (none, where it is alone).",
    '''\
import torch

from course_utils.grading import Mistake, Variant, collective
from course_utils.grading.ranks import COLLECTIVES, PARTNERS, case, so_many


def oracle(rank, given):
    return given[rank - 1]["tensor"]


def sends(rank, given):
    others = [(rank + 1) % len(given)] if len(given) > 1 else []
    return {{PARTNERS: others, COLLECTIVES: 0}}


def drawn(random, ranks, *shapes):
    generator = torch.Generator().manual_seed(random.getrandbits(31))
    calls = {{
        f"shape {{list(shape)}}": [{{"tensor": torch.randn(shape, generator=generator)}} for _ in range(ranks)]
        for shape in shapes
    }}
    return case(so_many(ranks), calls)


def public(random):
    return [drawn(random, 3, (2,), (2, 3)), drawn(random, 2, (4,)), drawn(random, 1, (2,))]


question = collective(
    oracle,
    sends=sends,
{fields}    answer="from_the_left",
    public=public,
)
# HIDDEN


def hidden(random):
    return [drawn(random, ranks, (random.randint(1, 9),)) for ranks in (2, 4)]


mistakes = [
    Mistake(
        "from the right",
        "This is the tensor of the next rank.",
        (("rank + 1", "rank - 1"), ("before, (rank - 1)", "before, (rank + 1)")),
    ),
    Mistake("its own", "A rank returns what it had: return what has come.", (("return before", "return tensor"),), 1),
]
variants = [
    Variant(
        "in a batch",
        """\\
import torch
import torch.distributed as dist


def from_the_left(tensor):
    ranks = dist.get_world_size()
    if ranks == 1:
        return tensor
    came = torch.zeros_like(tensor)
    right, left = (dist.get_rank() + 1) % ranks, (dist.get_rank() - 1) % ranks
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, right), dist.P2POp(dist.irecv, came, left)]):
        work.wait()
    return came
""",
    )
]
# END HIDDEN''',
    '''\
import torch
import torch.distributed as dist


def from_the_left(tensor):
    """The tensor of the rank before."""
    ### BEGIN SOLUTION
    rank, ranks, before = dist.get_rank(), dist.get_world_size(), tensor.clone()
    if ranks > 1:
        sending = dist.isend(tensor, (rank + 1) % ranks)
        dist.recv(before, (rank - 1) % ranks)
        sending.wait()
    return before
    ### END SOLUTION''',
)

KINDS = {
    "function": _FUNCTION,
    "stream": _STREAM,
    "scaler": _SCALER,
    "sharded": _SHARDED,
    "collective": _COLLECTIVE,
    "account": _ACCOUNT,
    "cost": _COST,
    "choice": _CHOICE,
    "design": _DESIGN,
}
