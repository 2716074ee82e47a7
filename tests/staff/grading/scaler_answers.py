"""A loss scaler, and the mistakes that are made in one, as patches."""

SCALER = """
class LossScaler:
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
