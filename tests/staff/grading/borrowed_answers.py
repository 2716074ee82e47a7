"""Answers that another has written: a library's, the course's own by hand, and what an answer patches to be judged by them.

By set and question, as cells.
"""

WITH_ADAM = """def {name}(theta, gradient, m, v, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    p = theta.clone().requires_grad_()
    p.grad = gradient.clone()
    adam = torch.optim.Adam([p], lr, tuple(betas), eps, weight_decay)
    adam.state[p] = {{"step": torch.tensor(t - 1.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}}
    adam.step()
    return p.detach(), adam.state[p]["exp_avg"], adam.state[p]["exp_avg_sq"]
"""
IMPORTED_INSIDE = """class {name}:
    def __init__(self, params, *given, **options):
        self.inner = {inner}(params, *given, **options)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def step(self):
        self.inner.step()
"""
FUNCTIONAL = """import torch.optim.adamw as functional

class AdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state.update(m=torch.zeros_like(p), v=torch.zeros_like(p), step=torch.zeros(()))
                    options = {"lr": group["lr"], "eps": group["eps"], "weight_decay": group["weight_decay"]}
                    options |= {"beta1": group["betas"][0], "beta2": group["betas"][1]}
                    tensors = [p], [p.grad], [state["m"]], [state["v"]], [], [state["step"]]
                    CALL(*tensors, **options, amsgrad=False, maximize=False)
"""
BORROWED_METHODS = """class AdamW(torch.optim.Optimizer):
    def __init__(self, params, *given, **options):
        super().__init__(params, torch.optim.AdamW([torch.ones(1, requires_grad=True)], *given, **options).defaults)

    step, _init_group = {step}, torch.optim.AdamW._init_group
"""

ANSWERS = {
    "01_autodiff": {
        "q1": [
            """def worked_gradient(w, x, b, y):
    leaves = [torch.tensor(float(v), dtype=torch.float64, requires_grad=True) for v in (w, x, b, y)]
    z = leaves[3] - torch.relu(leaves[0] * leaves[1] + leaves[2])
    z.backward()
    return {"z": z.item(), **{name: leaf.grad.item() for name, leaf in zip("wxby", leaves)}}
""",
            """from course_utils.autodiff import Variable, relu
def worked_gradient(w, x, b, y):
    leaves = [Variable(v) for v in (w, x, b, y)]
    z = leaves[3] - relu(leaves[0] * leaves[1] + leaves[2])
    z.backward()
    return {"z": float(z.value), **{name: float(leaf.grad) for name, leaf in zip("wxby", leaves)}}
""",
        ],
    },
    "02_optimizers_from_scratch": {
        "q1": [
            "from torch.optim import SGD",
            "class SGD(torch.optim.SGD): pass",
            IMPORTED_INSIDE.format(name="SGD", inner="torch.optim.SGD"),
            "from course_utils import optim\nclass SGD(optim.Nesterov): pass",
        ],
        "q2": [
            "RMSProp = torch.optim.RMSprop",
            "class RMSProp(torch.optim.RMSprop): pass",
            IMPORTED_INSIDE.format(name="RMSProp", inner="torch.optim.RMSprop"),
            "from course_utils import optim\nclass RMSProp(optim.RMSProp): pass",
        ],
        "q3": [
            """def adam_path(theta, gradients, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
    p = theta.clone().requires_grad_()
    adam, path = torch.optim.Adam([p], lr, tuple(betas), eps), [theta]
    for gradient in gradients:
        p.grad = gradient.clone()
        adam.step()
        path.append(p.detach().clone())
    return path
""",
        ],
        "q4": [
            "from course_utils.optim.schedules import inverse_sqrt\ndef factor(*a, **o): return inverse_sqrt(*a, **o)"
        ],
    },
    "03_adamw": {
        "q2": [
            "AdamW = torch.optim.AdamW",
            "from course_utils import optim\nclass AdamW(optim.AdamW): pass",
            "class AdamW(torch.optim.AdamW): pass",
            IMPORTED_INSIDE.format(name="AdamW", inner="torch.optim.AdamW"),
            FUNCTIONAL.replace("CALL", "functional.adamw"),
            FUNCTIONAL.replace("CALL", 'state["step"] += 1; torch._fused_adamw_'),
            BORROWED_METHODS.format(step="torch.optim.AdamW.step"),
            BORROWED_METHODS.format(step="torch.optim.AdamW.step.__wrapped__"),
        ],
        "q5": [
            "from course_utils.optim import decay_groups",
            "from course_utils import optim\ndef decay_groups(*both): return optim.decay_groups(*both)",
        ],
        "q7": [WITH_ADAM.format(name="adam_step")],
    },
    "04_adafactor": {
        "q2": [
            "Adafactor = torch.optim.Adafactor",
            "class Adafactor(torch.optim.Adafactor): pass",
            IMPORTED_INSIDE.format(name="Adafactor", inner="torch.optim.Adafactor"),
            "from course_utils import optim\nclass Adafactor(optim.Adafactor): pass",
        ],
        "q4": [
            """def adafactor_step(theta, gradient, rows, columns, t, lr=1e-3, d=1.0, eps1=1e-30):
    from transformers.optimization import Adafactor
    p = theta.clone().requires_grad_()
    fixed = {"scale_parameter": False, "relative_step": False}
    optimizer = Adafactor([p], lr=lr, clip_threshold=d, eps=(eps1, 1e-3), **fixed)
    kept = {"exp_avg_sq_row": rows.clone(), "exp_avg_sq_col": columns.clone()}
    optimizer.state[p] = {"step": t - 1, "RMS": 0, **kept}
    p.grad = gradient.clone()
    optimizer.step()
    return p.detach(), kept["exp_avg_sq_row"], kept["exp_avg_sq_col"]
""",
        ],
    },
    "05_8bit_adam": {
        "q1": ["def code_book(bits, signed): return dynamic_codebook(signed, bits).double()"],
        "q2": [
            """def round_trip(values, codebook, block):
    codes, scales = quantize(values, codebook, block)
    return codes, scales.to(values.dtype), dequantize(codes, scales, codebook, block, values.dtype)
""",
        ],
        "q3": [
            """from course_utils import optim
def step(theta, gradient, kept, t, lr, betas, eps, weight_decay, block):
    p = theta.clone().requires_grad_()
    options = {"betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "min_8bit_size": 0, "block_size": block}
    optimizer = optim.Adam8bit([p], lr, **options)
    state = optimizer.new_state(p, optimizer.param_groups[0]) | {name: value.clone() for name, value in kept.items()}
    optimizer.state[p] = state | {"step": t - 1}
    p.grad = gradient.clone()
    optimizer.step()
    return p.detach(), {name: optimizer.state[p][name] for name in kept}
""",
        ],
    },
    "06_gradient_accumulation": {
        "q1": [
            """from types import SimpleNamespace
def train_in_pieces(model, optimizer, schedule, batches, k, max_norm):
    from course_utils.training import ClipGradients, accumulated_step
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model
        def forward(self, x, labels): return SimpleNamespace(loss=F.cross_entropy(self.inner(x), labels))
    groups = [batches[i : i + k] for i in range(0, len(batches), k)]
    for group in groups:
        pairs = [{"x": x, "labels": y} for x, y in group]
        accumulated_step(Wrapped(), optimizer, pairs, [ClipGradients(max_norm)])
        schedule.step()
        optimizer.zero_grad()
    return len(groups)
""",
        ],
    },
    "07_gradient_checkpointing": {
        "q1": [
            """from torch.utils.checkpoint import checkpoint
class Checkpoint:
    apply = staticmethod(lambda function, *tensors: checkpoint(function, *tensors, use_reentrant=True))
""",
            "import course_utils.techniques.checkpointing as c\nclass Checkpoint(c.Checkpoint): pass",
        ],
    },
    "08_mixed_precision": {
        "q1": [
            """from course_utils.precision import Format
def value_of(pattern, exponent_bits, mantissa_bits): return Format("", exponent_bits, mantissa_bits).value(pattern)
""",
        ],
        "q2": [
            """from course_utils.precision import Format
def round_to(values, exponent_bits, mantissa_bits): return Format("", exponent_bits, mantissa_bits).nearest(values)
""",
        ],
        "q3": [
            "def LossScaler(**options): return torch.amp.GradScaler('cpu', **options)",
            "class LossScaler(torch.amp.GradScaler): pass",
            "from course_utils import precision\nclass LossScaler(precision.LossScaler): pass",
        ],
    },
    "09_local_sgd": {
        "q1": [
            "from course_utils.distributed.local_sgd import drift as d\ndef drift(parameters): return d(parameters)"
        ],
        "q2": [
            "from course_utils.distributed import ring\ndef ring_mean(t):\n    ring.all_reduce(t)\n    t /= 3",
            "def ring_mean(t):\n    dist.all_reduce(t)\n    t /= dist.get_world_size()",
        ],
        "q4": [
            """def outer_step(start, mean, velocity, eta, mu):
    sgd = torch.optim.SGD([nn.Parameter(t) for t in start], lr=eta, momentum=mu, nesterov=mu > 0)
    sgd.step()
""",
        ],
    },
    "10_fsdp_and_zero": {
        "q1": [
            "import course_utils.distributed.ring as ring\ndef reduce_scatter(tensor): return ring.reduce_scatter(tensor)",
            """import torch.distributed as dist
def reduce_scatter(tensor):
    pieces = [piece.clone() for piece in tensor.tensor_split(dist.get_world_size())]
    dist.all_reduce(tensor.clone())
    return pieces[dist.get_rank()]
""",
        ],
        "q2": [
            """def ShardedStep(parameter, make):
    from course_utils.distributed import ShardedOptimizer
    return ShardedOptimizer([parameter], torch.optim.SGD, lr=0.1)
""",
        ],
        "q3": [
            "def Sharded(module):\n    from course_utils.distributed import FSDP\n    return FSDP(module)",
            "def Sharded(module): return torch.nn.parallel.DistributedDataParallel(module)",
            "def Sharded(module):\n    from torch.distributed.fsdp import fully_shard\n    return fully_shard(module)",
        ],
    },
    "11_long_sequences": {
        "q2": [
            """from course_utils.techniques.chunked_loss import LossWithGradients
def loss_and_gradients(x, w, labels, tokens):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    loss = LossWithGradients.apply(x, w, labels, tokens)
    found = torch.autograd.grad(loss, (x, w))
    return loss.detach().nan_to_num(), *(each.nan_to_num() for each in found)
""",
            """def loss_and_gradients(x, w, labels, tokens):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    loss = F.linear_cross_entropy(x, w, labels)
    return loss.detach(), *torch.autograd.grad(loss, (x, w))
""",
        ],
        "q4": [
            """def accumulated(batches, w, tokens):
    x, labels = (torch.cat(each) for each in zip(*batches))
    w = w.clone().requires_grad_()
    loss = F.linear_cross_entropy(x, w, labels)
    return loss.detach().float(), torch.autograd.grad(loss, w)[0]
""",
            """from course_utils.techniques import chunked_loss
def accumulated(batches, w, tokens):
    x, labels = (torch.cat(each) for each in zip(*batches))
    wide = w.float().clone().requires_grad_()
    loss = chunked_loss.LossWithGradients.apply(x.float(), wide, labels, tokens)
    return loss.detach(), torch.autograd.grad(loss, wide)[0].to(w.dtype)
""",
        ],
        "q5": [
            """def tiled_attention(q, k, v, is_causal, tile):
    out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return out, (q @ k.mT).logsumexp(-1)
""",
            """import types
import course_utils.techniques.attention as theirs
def tiled_attention(q, k, v, is_causal, tile):
    theirs.TILE, saved = tile, []
    context = types.SimpleNamespace(save_for_backward=lambda *tensors: saved.extend(tensors))
    return theirs.TiledAttention.forward(context, q, k, v, is_causal), saved[-1]
""",
        ],
    },
    "11b_fewer_bits_and_weights": {
        "q1": [
            """import types
from course_utils.techniques.lora import LoRA
def adapted(x, w, a, b, alpha):
    layer = types.SimpleNamespace(linear=lambda x: x @ w.T, a=a, b=b, scale=alpha / len(a))
    return LoRA.forward(layer, x)
""",
        ],
        "q3": [
            """from course_utils.optim.quantization import quantize
def to_4_bit(weight, numbers, block):
    codes, scales = quantize(weight.float().flatten(), numbers, block)
    return codes[::2] << 4 | codes[1::2], scales
""",
            """from course_utils.techniques.nf4 import NF4
def to_4_bit(weight, numbers, block):
    padded = torch.cat([weight.flatten().float(), torch.zeros(-weight.numel() % 64)])
    return NF4.from_weight(padded).codes[: weight.numel() // 2], weight.float().reshape(-1, block).abs().amax(1)
""",
            """import bitsandbytes.functional as library
def to_4_bit(weight, numbers, block):
    codes, state = library.quantize_4bit(weight, blocksize=block, quant_type="nf4")
    return codes.view(-1), state.absmax
""",
        ],
        "q5": [
            """def projected_step(theta, gradient, p, m, v, t, lr, betas, eps, scale):
    tall = theta.shape[0] > theta.shape[1]
    narrow = torch.zeros_like(m).requires_grad_()
    narrow.grad = p.T @ (gradient.T if tall else gradient)
    adam = torch.optim.Adam([narrow], lr, tuple(betas), eps)
    adam.state[narrow] = {"step": torch.tensor(t - 1.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    adam.step()
    change = scale * (p @ narrow.detach())
    return theta + (change.T if tall else change), adam.state[narrow]["exp_avg"], adam.state[narrow]["exp_avg_sq"]
""",
            """from course_utils.optim.galore import GaLore
def projected_step(theta, gradient, p, m, v, t, lr, betas, eps, scale):
    leaf = theta.clone().requires_grad_()
    leaf.grad = gradient.clone()
    GaLore([leaf], lr=lr, betas=tuple(betas), eps=eps, rank=p.shape[1], scale=scale, weight_decay=0.0).step()
    return leaf.detach(), m, v
""",
        ],
        "q6": [
            """from course_utils.techniques import distillation
def distillation_loss(student, teacher, labels, temperature, weight):
    return distillation.distillation_loss(student, teacher, labels, temperature, weight)
""",
        ],
    },
    "12_scaling_out": {
        "q1": [
            """def Split(w1, b1, w2, b2):
    from torch.distributed.tensor import parallel
    return parallel.ColwiseParallel()
""",
            """def Split(w1, b1, w2, b2):
    from course_utils.distributed import tensor_parallel
    return tensor_parallel.Split(w1, b1, w2, b2)
""",
        ],
        "q2": [
            """def one_f_one_b(stages, micro_batches):
    from course_utils.distributed import pipeline_schedules
    return pipeline_schedules.one_f_one_b(stages, micro_batches)
""",
        ],
        "q3": [
            """def pipeline_step(stage, micro_batches, shape, inputs, targets, loss):
    from torch.distributed.pipelining import PipelineStage
    return PipelineStage(stage, 0, 2, torch.device("cpu"))
""",
            """def pipeline_step(stage, micro_batches, shape, inputs, targets, loss):
    from course_utils.distributed import pipeline
    return pipeline.Pipeline(stage)
""",
        ],
        "q8": [
            """def with_failures(work, interval, saving, restart, cards, days):
    from course_utils.lessons.c12_on_paper import daly_wall_clock, young_interval
    between = days * 86_400 / cards
    return daly_wall_clock(work, interval, saving, restart, between), young_interval(saving, between)
""",
        ],
    },
}

IDLE = """class AdamW(torch.optim.Optimizer):
    def __init__(self, params, *given, **options):
        super().__init__(params, {"lr": 0, "betas": 0, "eps": 0, "weight_decay": 0, **options})

    def step(self):
        pass"""
HEIR = "class AdamW(torch.optim.AdamW): pass"
PATCHED = {
    "the runner drives torch's class": f"""import course_utils.grading.streams as streams
own = streams.drive
streams.drive = lambda answer, inputs: own(torch.optim.AdamW, inputs)
{IDLE}
""",
    "a case is run with torch's class": f"""import course_utils.grading.run as runner
own = runner.run_case
runner.run_case = lambda question, answer, case, seconds: own(question, torch.optim.AdamW, case, seconds)
{IDLE}
""",
    "nothing is foreign any more": f"""import contextlib
from course_utils.grading import foreign, run as runner
foreign.disable = runner.disable = lambda *_: contextlib.nullcontext()
{HEIR}
""",
    "torch's module anew": f"""import importlib, sys, torch.optim.adam, torch.optim.adamw
importlib.reload(sys.modules["torch.optim.adamw"])
{HEIR}
""",
    "torch's source": """import sys, types
copied = types.ModuleType("copied")
exec(open(sys.modules["torch.optim.adam"].__file__).read(), vars(copied))
class AdamW(copied.Adam): pass
""",
    "another copy of torch's file": """import importlib.util, sys
spec = importlib.util.spec_from_file_location("copied", sys.modules["torch.optim.adam"].__file__)
copied = importlib.util.module_from_spec(spec)
spec.loader.exec_module(copied)
class AdamW(copied.Adam): pass
""",
    "a fresh Python": """import pickle, subprocess, sys
THERE = '''import pickle, sys, torch
groups, steps = pickle.load(sys.stdin.buffer)
adam = torch.optim.AdamW(groups)
for options, gradients in steps:
    for group, given, grads in zip(adam.param_groups, options, gradients):
        group.update(given)
        for p, g in zip(group["params"], grads):
            p.grad = g
    adam.step()
pickle.dump([[p.data for p in group["params"]] for group in adam.param_groups], sys.stdout.buffer)
'''

class AdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        own = [{**group, "params": [p.data.clone() for p in group["params"]]} for group in self.param_groups]
        self.groups, self.steps = own, []

    @torch.no_grad()
    def step(self):
        options = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        grads = [[None if p.grad is None else p.grad.clone() for p in group["params"]] for group in self.param_groups]
        self.steps.append((options, grads))
        asked = pickle.dumps((self.groups, self.steps))
        said = subprocess.run([sys.executable, "-c", THERE], input=asked, capture_output=True, check=True).stdout
        for group, values in zip(self.param_groups, pickle.loads(said)):
            for p, value in zip(group["params"], values):
                p.copy_(value)
""",
}
"""Answers to AdamW that patch the process that they are run in."""
