"""A dry run compared with the allocator on the real step, CUDA's rules compared with papers, and refusals that name the line."""

import re
import subprocess
import sys

import pytest
import torch
import transformers
from llamas import dry
from torch import nn

from course_utils import memory, models
from course_utils.errors import CourseError
from course_utils.memory import dry_run, measure
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload
from course_utils.settings import SCALES
from course_utils.units import MiB

SMALL = SCALES["smoke"]


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("distilbert", Recipe("adafactor", batch=2, sequence=32, accumulation=2, clipping=True)),
        ("gpt2", Recipe("adamw-foreach", batch=4, sequence=32, checkpointing=True)),
        pytest.param(
            "llama", Recipe("adafactor-transformers", batch=4, sequence=32, attention="eager"), marks=pytest.mark.slow
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.optimizer,
)
def test_a_dry_run_predicts_what_the_allocator_counts(name, recipe):
    workload = Workload(models.configuration(name, labels=3 if name == "distilbert" else None, scale=SMALL), recipe)
    arguments = workload.build()
    measured = measure(arguments, workload.step)
    predicted = dry_run(workload.build, workload.step)
    assert predicted.peak == pytest.approx(measured.peak, rel=0.005)
    assert predicted.peak_phase == measured.peak_phase


SEVEN_BILLION = """
from pathlib import Path
from course_utils import memory, models
from course_utils.memory import Recipe, Workload, dry_run

def highest():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

workload = Workload(models.configuration("llama-7b"), Recipe("adafactor", "bf16", 1, 2048))
before = highest()
usage = dry_run(workload.build, workload.step)
print(int(usage.timeline["parameters"].iloc[0]), highest() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux keeps the record that is read here")
@pytest.mark.slow
def test_a_seven_billion_parameter_model_takes_megabytes():
    argv = [sys.executable, "-c", SEVEN_BILLION]
    child = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True)
    parameters, rise = map(int, child.stdout.split())
    assert parameters == 2 * 6_738_415_616
    assert 0 < rise < 500e6


def test_on_cuda_dropout_keeps_one_byte_an_element():
    def build():
        return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)), torch.ones(128, 64)

    def step(model, x):
        model(x).sum().backward()

    masks = {device: _largest_bool(dry_run(build, step, device)) for device in ("cpu", "cuda")}
    assert masks == {"cpu": 0, "cuda": 128 * 64}


def _largest_bool(usage):
    return max((piece.bytes for piece in usage.pieces if piece.dtype is torch.bool), default=0)


def test_on_cuda_torch_updates_all_tensors_at_once_unless_told_otherwise():
    def step(model, optimizer):
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def temporaries(**options):
        def build():
            model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(8)])
            return model, torch.optim.AdamW(model.parameters(), **options)

        return dry_run(build, step, "cuda").split["optimizer temporaries"]

    assert temporaries() == temporaries(foreach=True) == 8 * 64 * 64 * 4
    assert temporaries(foreach=False) < temporaries()


@pytest.mark.parametrize(("attention", "factor"), [("eager", 5), ("sdpa", 0)])
def test_on_cuda_a_layer_keeps_what_the_paper_says(attention, factor):
    """Korthikanti et al. (2023), equation 1: sbh(34 + 5as/h) bytes in half precision, 34sbh where attention is fused."""
    s, b, h, a = 128, 2, 256, 4
    sizes = {"n_embd": h, "n_head": a, "vocab_size": 64, "n_positions": s, "activation_function": "gelu"}

    def saved_bytes(blocks):
        config = models.configuration("gpt2", n_layer=blocks, use_cache=False, **sizes)
        usage = dry(config, Recipe("sgd", "bf16", b, s, attention=attention, device="cuda"))
        return usage.timeline.query("phase == 'forward'")["activations"].iloc[-1]

    assert saved_bytes(3) - saved_bytes(2) == pytest.approx(s * b * (34 * h + factor * a * s), rel=0.07)


def test_on_cuda_autocast_widens_what_cuda_widens():
    """On a GPU a layer norm's input is copied to float32, and softmax returns float32 without a copy."""

    def build():
        return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)), torch.ones(128, 64)

    def step(model, x):
        with torch.autocast("cuda", torch.bfloat16):
            model(x).softmax(-1).sum().backward()

    usage = dry_run(build, step, "cuda")
    born = {(p.operator, p.dtype) for p in usage.pieces if p.kind == "activations" and p.shape == (128, 64)}
    assert ("aten.native_layer_norm.default", torch.float32) in born
    assert ("aten.empty_like.default", torch.float32) in born
    assert not any(operator.startswith("aten._softmax") for operator, _ in born)


def test_what_is_offloaded_lies_on_the_host():
    """If the host were the device, nothing would be moved and the peak would not fall."""

    def build():
        return nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)]), torch.ones(256, 64)

    def plain(model, x):
        model(x).sum().backward()

    def offloaded(model, x):
        with torch.autograd.graph.save_on_cpu():
            loss = model(x).sum()
        loss.backward()

    before, after = dry_run(build, plain, "cuda"), dry_run(build, offloaded, "cuda")
    assert before.peak - after.peak > 4 * 256 * 64 * 4
    assert after.host.peak >= 8 * 256 * 64 * 4
    assert before.host is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_saved_on_disk_takes_no_memory(device):
    config = models.configuration("gpt2", scale=SMALL)

    def peak(saved_on_disk):
        workload = Workload(config, Recipe("sgd", batch=8, sequence=64, saved_on_disk=saved_on_disk, device=device))
        return workload, dry_run(workload.build, workload.step, device).peak

    (_, plain), (workload, on_disk) = peak(False), peak(True)
    assert on_disk < 0.8 * plain
    if device == "cpu":
        assert on_disk == pytest.approx(measure(workload.build, workload.step, timed=0).peak, rel=0.005)


def test_as_on_cuda_a_number_like_a_tensor_lies_where_the_tensor_does():
    def step(model, x):
        (model(x) * x.new_tensor(2.0)).sum().backward()

    usage = dry_run(lambda: (nn.Linear(4, 4), torch.ones(2, 4)), step, "cuda")
    assert usage.host is None


def test_a_device_may_be_named_as_on_a_gpu():
    makers = [layers, lambda: layers().to("cuda"), lambda: layers().cuda(), lambda: layers(device="cuda:0")]
    assert len({dry_run(*training_of(make), "cuda").peak for make in makers}) == 1


@pytest.mark.parametrize("needs", [lambda x: x.numpy(), lambda x: x[x > 0].sum() + len(x[x > 0].tolist())])
def test_what_needs_values_is_refused_by_line(needs):
    def step(model, x):
        needs(model(x).detach())

    with pytest.raises(CourseError, match=re.escape(f"line {needs.__code__.co_firstlineno} of test_dry_run.py")):
        dry_run(lambda: (nn.Linear(4, 4), torch.ones(2, 4)), step)


def in_halves(make):
    """The result of `make()` with bfloat16 as the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return make()
    finally:
        torch.set_default_dtype(before)


def training_of(make):
    """`build` and `step` for the model that `make` returns."""

    def step(model, optimizer):
        model(torch.ones(1, 4, dtype=next(model.parameters()).dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def build():
        model = make()
        return model, torch.optim.AdamW(model.parameters())

    return build, step


def layers(**kind):
    return nn.Sequential(*[nn.Linear(4, 4, **kind) for _ in range(8)])


@pytest.mark.parametrize("converted", [lambda: layers().to(torch.bfloat16), lambda: layers().bfloat16()])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_model_may_be_converted_after_it_was_built(converted, device):
    makers = converted, lambda: in_halves(layers), lambda: layers(dtype=torch.bfloat16)
    first, *others = (dry_run(*training_of(make), device) for make in makers)
    assert all(first.peak == other.peak and first.split == other.split for other in others)
    assert device == "cuda" or first.split["parameters"] == 8 * 20 * 2


def test_a_model_built_before_is_refused_and_stays_as_it_was():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(CourseError, match="real weights; make it and its optimizer inside build"):
        dry_run(lambda: (model, optimizer), train)
    assert model.weight.grad is None
    assert not optimizer.state


def train(model, optimizer, *scaler):
    loss = model(torch.ones(1, 2)).sum()
    if loss > 0.5 and not scaler:
        return
    if scaler:
        scaler[0].scale(loss).backward()
        scaler[0].step(optimizer)
        scaler[0].update()
    optimizer.zero_grad()


def linear_and_optimizer(*others):
    model = nn.Linear(2, 2)
    return model, torch.optim.AdamW(model.parameters()), *others


def test_a_step_that_leaves_out_its_update_for_what_it_was_told_is_refused():
    with pytest.raises(CourseError, match=r"never called its optimizer.*loss > 0\.5"):
        dry_run(linear_and_optimizer, train)


def test_a_loop_that_guards_itself_against_nan_is_predicted_as_if_there_were_none():
    def guarded(model, optimizer):
        loss = model(torch.ones(1, 2)).sum()
        if torch.isnan(loss) or torch.isinf(loss).any() or not torch.isfinite(loss):
            raise RuntimeError("the loss is no number")
        loss.backward()
        optimizer.step()

    assert "update" in dry_run(linear_and_optimizer, guarded).by_phase


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_a_build_that_fell_back_to_the_cpu_is_refused():
    def build():
        model = nn.Linear(64, 64).to("cuda" if torch.cuda.is_available() else "cpu")
        return model, torch.optim.Adam(model.parameters()), torch.ones(8, 64)

    def step(model, optimizer, inputs):
        model(inputs.to(next(model.parameters()).device)).sum().backward()
        optimizer.step()

    with pytest.raises(CourseError, match="write device='cuda' in build"):
        dry_run(build, step, "cuda")


def test_a_gradient_scaler_is_told_that_all_is_finite():
    assert "update" in dry_run(lambda: linear_and_optimizer(torch.amp.GradScaler("cpu")), train).by_phase


def on_the_host():
    return layers(device="cpu"), torch.ones(1, 4, device="cpu")


def failing(model):
    raise RuntimeError("expected 3 arguments")


def compiling(model):
    torch.compile(model)(torch.ones(1, 4))


@pytest.mark.parametrize(
    ("build", "step", "device", "message"),
    [
        (lambda: (nn.Linear(2, 2),), failing, "cpu", r"\(RuntimeError: expected 3 arguments\)\.$"),
        (lambda: (torch.ones(2),), lambda x: None, "cpu", "no model; let it return a tuple with one"),
        (lambda: nn.Linear(2, 2), lambda *parts: None, "cpu", "let it return a tuple"),
        (lambda: None, lambda: None, "tpu", "device='tpu'"),
        (on_the_host, lambda model, x: model(x).sum().backward(), "cuda", "The model lies on the host"),
        (lambda: (nn.Linear(4, 4),), compiling, "cpu", "out of build and step"),
        (*training_of(lambda: layers(device="meta")), "cpu", "let everything lie on one device"),
        (lambda: (torch.compile(nn.Linear(4, 4)),), lambda model: None, "cpu", "torch.compile"),
        (lambda: (torch.jit.script(nn.Linear(4, 4)),), lambda model: None, "cpu", "torch.jit.script made"),
        (lambda: (m := nn.Linear(4, 4), torch.optim.LBFGS(m.parameters())), lambda *parts: None, "cpu", "LBFGS"),
    ],
)
def test_what_a_dry_run_cannot_follow_is_a_sentence(build, step, device, message):
    with pytest.raises(CourseError, match=message):
        dry_run(build, step, device)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda model, optimizer: None,
            "build() returns 3 things, and <lambda>(model, optimizer) does not take that many",
        ),
        (lambda model, optimizer, x, y: None, "missing a required argument: 'y'"),
    ],
)
def test_a_step_that_takes_another_number_of_arguments_is_said_to_do_so(step, message):
    def build():
        model = nn.Linear(4, 4)
        return model, torch.optim.SGD(model.parameters()), torch.ones(2, 4)

    for ask in (dry_run, measure):
        with pytest.raises(CourseError) as refusal:
            ask(build, step)
        assert message in str(refusal.value)
        assert "dry_run.py" not in str(refusal.value)


def test_sparse_gradients_are_refused_and_measured():
    """The number of rows of a table that are used depends on values."""

    def build():
        table = nn.Embedding(200, 32, sparse=True)
        return table, torch.optim.SparseAdam(table.parameters()), torch.randint(0, 200, (500,))

    def step(table, optimizer, ids):
        table(ids).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with pytest.raises(CourseError, match=r"sparse tensors depends on their values.*memory\.measure\(build, step\)"):
        dry_run(build, step)
    assert memory.measure(build, step, timed=0).peak > 3 * 200 * 32 * 4


def test_a_refusal_names_the_callers_line_where_a_library_stops():
    """The dry run stops in Transformers' code, at the cache that Jamba makes by itself."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50}
    workload = Workload(transformers.JambaConfig(**sizes), Recipe())
    with pytest.raises(CourseError, match=r"line \d+ of test_dry_run\.py \(`dry_run\(workload\..*, inside JambaModel"):
        dry_run(workload.build, workload.step)


def test_a_dry_run_as_on_cuda_says_what_the_allocator_reserves():
    recipe = Recipe("adamw-foreach", batch=2, sequence=32, device="cuda")
    config = models.configuration("gpt2", scale=SCALES["smoke"])
    workload = Workload(config, recipe)
    usage = dry_run(workload.build, workload.step, device="cuda")
    assert usage.peak <= usage.reserved == try_recipe(source_of(config), recipe).log.reserved, "as course plan has it"
    assert usage.reserved % (2 * MiB) == 0, "in whole segments"
    with pytest.raises(CourseError, match="Only CUDA's allocator reserves bytes"):
        _ = dry_run(workload.build, workload.step).reserved
