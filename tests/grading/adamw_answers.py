"""AdamW in one source, and patches of it: answers that are wrong, answers that are right."""

ADAMW = """
class answer(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, g = self.state[p], p.grad
                if not state:
                    state["t"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["t"] += 1
                t, m, v = state["t"], state["m"], state["v"]
                p.mul_(1 - lr * decay)
                m.mul_(beta1).add_(g, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
                m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
                p.sub_(lr * m_hat / (v_hat.sqrt() + eps))
"""

STEP = "p.sub_(lr * m_hat / (v_hat.sqrt() + eps))"
FIRST, SECOND = "m.mul_(beta1).add_(g, alpha=1 - beta1)", "v.mul_(beta2).addcmul_(g, g, value=1 - beta2)"
NEW = 'state["t"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)'
WRONG = {
    "new memory for the parameter": (STEP, "p.data = p.data - lr * m_hat / (v_hat.sqrt() + eps)"),
    "L2 inside the gradient": ("p.mul_(1 - lr * decay)", "g = g + decay * p"),
    "L2 in p.grad itself": ("p.mul_(1 - lr * decay)", "g.add_(p, alpha=decay)"),
    "decay without lr": ("1 - lr * decay", "1 - decay"),
    "decay after the update": ("p.mul_(1 - lr * decay)", "pass", STEP, f"{STEP}; p.mul_(1 - lr * decay)"),
    "no decay": ("p.mul_(1 - lr * decay)", "pass"),
    "decay grows": ("1 - lr * decay", "1 + lr * decay"),
    "decay without a gradient": ("continue", "p.mul_(1 - lr * decay); continue"),
    "no correction of m": ("m / (1 - beta1**t)", "m"),
    "no correction of v": ("v / (1 - beta2**t)", "v"),
    "betas swapped": ("beta1, beta2 =", "beta2, beta1 ="),
    "eps inside the root": ("(v_hat.sqrt() + eps)", "(v_hat + eps).sqrt()"),
    "eps before the correction": (STEP, "p.sub_(lr * m_hat / ((v.sqrt() + eps) / (1 - beta2**t) ** 0.5))"),
    "eps in both places": (STEP, "p.sub_(lr * m_hat / ((v_hat + eps**2).sqrt() + eps))"),
    "no eps": ("(v_hat.sqrt() + eps)", "v_hat.sqrt()"),
    "no root": ("v_hat.sqrt()", "v_hat"),
    "gradient not squared": ("addcmul_(g, g, ", "addcmul_(g, torch.ones_like(g), "),
    "absolute gradient": ("addcmul_(g, g, ", "addcmul_(g.abs(), torch.ones_like(g), "),
    "m without 1 - beta1": ("alpha=1 - beta1", "alpha=1"),
    "v without 1 - beta2": ("value=1 - beta2", "value=1"),
    "sign": ("p.sub_(lr", "p.add_(lr"),
    "the gradient in place of m": ("lr * m_hat", "lr * g"),
    "Nesterov": ("lr * m_hat", "lr * (beta1 * m_hat + (1 - beta1) * g / (1 - beta1**t))"),
    "AMSGrad": (
        NEW,
        NEW + '; state["x"] = torch.zeros_like(p)',
        "v_hat =",
        "v_hat = state['x'].copy_(torch.maximum(state['x'], v)); _ =",
    ),
    "t stays 0": ('state["t"] += 1', "pass"),
    "t one ahead": ("= 0, torch", "= 1, torch"),
    "one t for all": ('state["t"] += 1', 'self.t = getattr(self, "t", 0) + 1; state["t"] = self.t'),
    "t counts steps without a gradient": (
        "if p.grad is None:",
        'if p.grad is None and self.state[p]: self.state[p]["t"] += 1\n                if p.grad is None:',
    ),
    "t not saved": (
        'state["t"] += 1',
        "self.ts = getattr(self, 'ts', {}); self.ts[p] = self.ts.get(p, 0) + 1; state['t'] = self.ts[p]",
    ),
    "the first group's hyper-parameters": (
        'for p in group["params"]',
        'beta1, beta2 = self.param_groups[0]["betas"]\n            for p in group["params"]',
    ),
    "the first group's eps": (
        'eps, decay = group["lr"], group["eps"]',
        'eps, decay = group["lr"], self.param_groups[0]["eps"]',
    ),
    "the constructor's lr": ('lr, eps, decay = group["lr"]', 'lr, eps, decay = self.defaults["lr"]'),
    "the first lr": ('lr, eps, decay = group["lr"]', 'lr, eps, decay = group.setdefault("first", group["lr"])'),
    "the first group only": ("in self.param_groups:", "in self.param_groups[:1]:"),
    "stops at the first missing gradient": ("continue", "break"),
    "skips gradients that are zero": ("if p.grad is None:", "if p.grad is None or not p.grad.any():"),
    "missing gradients taken for zero": (
        "if p.grad is None:\n                    continue\n                state, g = self.state[p], p.grad",
        "state, g = self.state[p], torch.zeros_like(p) if p.grad is None else p.grad",
    ),
    "clears p.grad": (STEP, f"{STEP}; p.grad = None"),
    "zeroes p.grad": (STEP, f"{STEP}; p.grad.zero_()"),
    "scales p.grad": (SECOND, f"{SECOND}; g.mul_(2)"),
    "clips gradients": ("self.state[p], p.grad", "self.state[p], p.grad.clamp(-1, 1)"),
    "normalizes gradients": ("self.state[p], p.grad", "self.state[p], p.grad / (p.grad.norm() + 1e-12)"),
    "float32 state": (NEW, NEW.replace("zeros_like(p)", "zeros_like(p, dtype=torch.float32)")),
    "float32 gradient": ("self.state[p], p.grad", "self.state[p], p.grad.float().double()"),
    "float32 parameter": (STEP, f"{STEP}; p.copy_(p.float())"),
    "state shared by all": ("self.state[p], p.grad", "self.state[len(p.shape)], p.grad"),
    "scalar second moment": (SECOND, "v.mul_(beta2).add_((g * g).mean() * (1 - beta2))"),
    "update of a copy": (STEP, "p = p - lr * m_hat / (v_hat.sqrt() + eps)"),
    "keeps a third tensor": (NEW, NEW + '; state["last"] = torch.zeros_like(p)'),
    "state not saved": (
        "@torch.no_grad()",
        "def state_dict(self): return {**super().state_dict(), 'state': {}}\n\n    @torch.no_grad()",
    ),
    "m starts at the gradient": (NEW, NEW.replace("0, torch.zeros_like(p)", "0, g.clone()")),
    "m aliases the gradient": (
        FIRST,
        'state["m"] = m = m.mul(beta1).add(g, alpha=1 - beta1) if t > 1 else g.mul_(1 - beta1)',
    ),
    "default lr": ("lr=1e-3", "lr=1e-2"),
    "default beta1": ("(0.9, 0.999)", "(0.95, 0.999)"),
    "default beta2": ("(0.9, 0.999)", "(0.9, 0.99)"),
    "default eps": ("eps=1e-8", "eps=1e-7"),
    "default decay": ("weight_decay=1e-2", "weight_decay=0.0"),
    "another default decay": ("weight_decay=1e-2", "weight_decay=2e-2"),
    "decays with the square of lr": ("1 - lr * decay", "1 - lr * lr * decay"),
    "exponential decay": ("p.mul_(1 - lr * decay)", "p.mul_(2.718281828459045 ** (-lr * decay))"),
    "decay of the new gradient's sign": ("p.mul_(1 - lr * decay)", "p.sub_(lr * decay * p.sign())"),
    "decay not of single numbers": ("p.mul_(1 - lr * decay)", "p.mul_(1 - lr * decay * (p.ndim > 0))"),
    "the first decay": ('group["weight_decay"]\n', 'group.setdefault("first", group["weight_decay"])\n'),
    "state by shape": ("self.state[p], p.grad", "self.state[tuple(p.shape)], p.grad"),
    "averages remembered beside the state": (
        't, m, v = state["t"], state["m"], state["v"]',
        "self.seen = getattr(self, 'seen', {}); t = state['t']; m, v = self.seen.setdefault(p, (state['m'], state['v']))",
    ),
    "a view of a matrix that lies otherwise": (
        STEP,
        "p.view(-1).sub_((lr * m_hat / (v_hat.sqrt() + eps)).reshape(-1))",
    ),
    "a copy of a matrix that lies otherwise": (STEP, STEP.replace("p.sub_", "p.contiguous().sub_")),
    "switches autograd off": (
        "@torch.no_grad()\n    def step(self):",
        "def step(self):\n        torch.set_grad_enabled(False)",
    ),
    "freezes its parameters": (STEP, f"{STEP}; p.requires_grad_(False)"),
    "update clipped": ("lr * m_hat / (v_hat.sqrt() + eps)", "(lr * m_hat / (v_hat.sqrt() + eps)).clamp(-lr, lr)"),
}
RIGHT = {
    "as it stands": (),
    "in place": (STEP, "p.addcdiv_(m, v.sqrt().div_((1 - beta2**t) ** 0.5).add_(eps), value=-lr / (1 - beta1**t))"),
    "lerp": (FIRST, "m.lerp_(g, 1 - beta1)"),
    "out of place": (
        FIRST,
        'm = state["m"] = beta1 * m + (1 - beta1) * g',
        SECOND,
        'v = state["v"] = beta2 * v + (1 - beta2) * g**2',
    ),
    "p.data": ("p.mul_(1 - lr * decay)", "p.data -= lr * decay * p.data"),
    "decay subtracted": ("p.mul_(1 - lr * decay)", "p.sub_(lr * decay * p)"),
    "decay and update at once": (
        "p.mul_(1 - lr * decay)",
        "old = p.clone()",
        STEP,
        "p.copy_(old - lr * (m_hat / (v_hat.sqrt() + eps) + decay * old))",
    ),
    "a counter as torch keeps it": ("= 0, torch", "= torch.tensor(0.0), torch"),
    "powers kept": (
        NEW,
        NEW + '; state["b1"] = state["b2"] = 1.0',
        "m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)",
        'state["b1"] *= beta1; state["b2"] *= beta2; m_hat, v_hat = m / (1 - state["b1"]), v / (1 - state["b2"])',
    ),
    "the paper's efficient order": (
        STEP,
        "a = lr * (1 - beta2**t) ** 0.5 / (1 - beta1**t); p.sub_(a * m / (v.sqrt() + eps * (1 - beta2**t) ** 0.5))",
    ),
    "state before the gradient is looked at": (
        "if p.grad is None:",
        "self.state[p]\n                if p.grad is None:",
    ),
    "starts with weighted gradients": (NEW, 'state["t"], state["m"], state["v"] = 0, 0 * g, 0 * g * g'),
    "averages that are corrected all along": (
        FIRST,
        "m += (1 - beta1) / (1 - beta1**t) * (g - m)",
        SECOND,
        "v += (1 - beta2) / (1 - beta2**t) * (g * g - v)",
        "m / (1 - beta1**t), v / (1 - beta2**t)",
        "m, v",
    ),
    "in float64 and back": (STEP, "p.copy_(p.double() - lr * m_hat.double() / (v_hat.double().sqrt() + eps))"),
    "a closure": ("def step(self):", "def step(self, closure=None):"),
    "foreach": (STEP, "torch._foreach_sub_([p], [lr * m_hat / (v_hat.sqrt() + eps)])"),
}


EAGER = """
class answer(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"t": torch.zeros(()), "m": torch.zeros_like(p), "v": torch.zeros_like(p)}

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                self._update([p for p in group["params"] if p.grad is not None], group)

    def _update(self, params, group):
        grads = [p.grad for p in params]
        if not params:
            return
        ms, vs = [self.state[p]["m"] for p in params], [self.state[p]["v"] for p in params]
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_lerp_(ms, grads, 1 - group["betas"][0])
        torch._foreach_mul_(vs, group["betas"][1])
        torch._foreach_addcmul_(vs, grads, grads, 1 - group["betas"][1])
        for p, m, v in zip(params, ms, vs):
            self.state[p]["t"] += 1
            t = float(self.state[p]["t"])
            p -= group["lr"] * (m / (1 - group["betas"][0] ** t)) / ((v / (1 - group["betas"][1] ** t)) ** 0.5 + group["eps"])
"""
FLAT = """
class answer(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            ready = [p for p in group["params"] if p.grad is not None]
            if not ready:
                continue
            for p in ready:
                if not self.state[p]:
                    self.state[p].update(t=0, moments=torch.zeros(2, *p.shape, dtype=p.dtype))
                self.state[p]["t"] += 1
            beta1, beta2 = group["betas"]
            theta, g = (torch.cat([x.reshape(-1) for x in xs]) for xs in (ready, [p.grad for p in ready]))
            m, v = (torch.cat([self.state[p]["moments"][i].reshape(-1) for p in ready]) for i in (0, 1))
            t = torch.cat([torch.full((p.numel(),), self.state[p]["t"], dtype=p.dtype) for p in ready])
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g.pow(2)
            theta = theta - group["lr"] * group["weight_decay"] * theta
            theta -= group["lr"] * (m / (1 - beta1**t)) / (torch.sqrt(v / (1 - beta2**t)) + group["eps"])
            start = 0
            for p in ready:
                part = slice(start, start + p.numel())
                p.copy_(theta[part].view_as(p))
                self.state[p]["moments"].copy_(torch.stack([m[part].view_as(p), v[part].view_as(p)]))
                start += p.numel()
"""
