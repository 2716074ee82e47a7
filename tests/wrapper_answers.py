"""Loss scalers and wrappers of modules, right ones and the mistakes that are made in them, as patches."""

SCALER = """
class answer:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.scale_now, self.good_steps = init_scale, 0
        self.growth, self.backoff, self.interval = growth_factor, backoff_factor, growth_interval
        self.found, self.unscaled = False, False

    def scale(self, loss):
        return loss * self.scale_now

    def unscale_(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= self.scale_now
                self.found |= not p.grad.isfinite().all().item()
        self.unscaled = True

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        if not self.found:
            optimizer.step()

    def update(self):
        if self.found:
            self.scale_now *= self.backoff
            self.good_steps = 0
        else:
            self.good_steps += 1
            if self.good_steps == self.interval:
                self.scale_now *= self.growth
                self.good_steps = 0
        self.found, self.unscaled = False, False

    def get_scale(self):
        return self.scale_now

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)
"""

_FORGET, _LOAD = "self.good_steps = 0", "vars(self).update(state)"
_BACK = f"self.scale_now *= self.backoff\n            {_FORGET}"
_GROW = f"self.scale_now *= self.growth\n                {_FORGET}"

WRONG_SCALERS = {
    "never skips": ("if not self.found:\n", "if True:\n"),
    "never grows": ("self.scale_now *= self.growth", "pass"),
    "never backs off": ("self.scale_now *= self.backoff", "pass"),
    "keeps counting over an overflow": (_BACK, "self.scale_now *= self.backoff"),
    "grows one step late": ("== self.interval", "== self.interval + 1"),
    "grows at every good step from then on": (_GROW, "self.scale_now *= self.growth; self.good_steps -= 1"),
    "sees infinities but not NaN": ("not p.grad.isfinite().all().item()", "p.grad.isinf().any().item()"),
    "sees NaN but not infinities": ("not p.grad.isfinite().all().item()", "p.grad.isnan().any().item()"),
    "looks at the last parameter only": ("self.found |=", "self.found ="),
    "unscales twice": ("        self.unscaled = True\n", ""),
    "never forgets an overflow": (
        "self.found, self.unscaled = False, False\n\n    def get",
        "self.unscaled = False\n\n    def get",
    ),
    "loses the count at a reload": (_LOAD, f"{_LOAD}; {_FORGET}"),
    "loses the factors at a reload": (
        _LOAD,
        "self.scale_now, self.good_steps = state['scale_now'], state['good_steps']",
    ),
    "does not unscale": ("p.grad /= self.scale_now", "pass"),
    "divides by the factor": ("*= self.backoff", "/= self.backoff"),
}

DDP = """
import torch
import torch.distributed as dist

class answer(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for p in module.parameters():
            dist.broadcast(p.data, 0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.average)
        self.before = {}

    def average(self, p):
        fresh = p.grad - self.before.get(p, 0)
        dist.all_reduce(fresh)
        p.grad = self.before.get(p, 0) + fresh / dist.get_world_size()
        self.before[p] = p.grad.clone()

    def forward(self, x):
        self.before = {p: g for p, g in self.before.items() if p.grad is not None}
        return self.module(x)
"""

SHARDED = """
import torch
import torch.distributed as dist

class answer(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.inner, self.rank, self.ranks = [module], dist.get_rank(), dist.get_world_size()
        for name, p in module.named_parameters():
            dist.broadcast(p.data, 0)
            size = -(-p.numel() // self.ranks)
            whole = torch.zeros(size * self.ranks, dtype=p.dtype)
            whole[: p.numel()] = p.data.flatten()
            mine = torch.nn.Parameter(whole[self.rank * size : (self.rank + 1) * size].clone(), p.requires_grad)
            self.register_parameter(name.replace(".", "_"), mine)
        self.shapes = {name: p.shape for name, p in module.named_parameters()}
        for p in module.parameters():
            p.data = p.data.new_empty(0)

    def whole(self, name):
        mine = getattr(self, name.replace(".", "_"))
        return Gather.apply(mine)[: self.shapes[name].numel()].view(self.shapes[name])

    def forward(self, x):
        return torch.func.functional_call(self.inner[0], {name: self.whole(name) for name in self.shapes}, (x,))

    def full_state_dict(self):
        return {name: self.whole(name).detach() for name in self.shapes}

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mine):
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        grad = grad / dist.get_world_size()
        return grad.chunk(dist.get_world_size())[dist.get_rank()].clone()
"""

WRONG_SHARDED = {
    "sums instead of averaging": ("grad = grad / dist.get_world_size()", "pass"),
    "keeps the gradient of its own share": ("dist.all_reduce(grad)", "pass"),
    "does not broadcast": ("dist.broadcast(p.data, 0)", "pass"),
    "keeps the whole parameter behind its shard": ("size].clone()", "size]"),
    "leaves the module its own parameters": ("p.data = p.data.new_empty(0)", "pass"),
    "keeps what it gathered": (
        "        return torch.func",
        "        self.seen = {'last': [self.whole(name) for name in self.shapes]}\n        return torch.func",
    ),
    "takes the other rank's gradient": ("[dist.get_rank()].clone()", "[1 - dist.get_rank()].clone()"),
}
