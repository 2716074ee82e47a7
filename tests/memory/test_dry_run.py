import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory import dry_run, estimate, measure
from course_utils.memory.recipe import Recipe
from course_utils.memory.workload import Workload
from course_utils.settings import SCALES

SMALL = SCALES["smoke"]


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("distilbert", Recipe(batch=8, sequence=32)),
        ("distilbert", Recipe("adafactor", batch=2, sequence=32, accumulation=2, clipping=True)),
        ("gpt2", Recipe("adamw-foreach", batch=4, sequence=32, checkpointing=True)),
        ("llama", Recipe("adafactor-transformers", batch=4, sequence=32, attention="eager")),
        ("gpt2", Recipe("adamw8bit", batch=8, sequence=64)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.optimizer,
)
def test_a_dry_run_predicts_what_the_allocator_counts(name, recipe):
    work = Workload(models.configuration(name, labels=3 if name == "distilbert" else None, scale=SMALL), recipe)
    built = work.build()
    measured = measure(lambda: work.step(*built), *built[:2])
    predicted = dry_run(work.build, work.step)
    assert predicted.peak == pytest.approx(measured.peak, rel=0.005)
    assert predicted.peak_phase == measured.peak_phase


SEVEN_BILLION = """
from pathlib import Path
from course_utils import models
from course_utils.memory import Recipe, Workload, dry_run

def highest():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

work = Workload(models.configuration("llama-7b"), Recipe("adafactor", "bf16", 1, 2048))
before = highest()
usage = dry_run(work.build, work.step)
print(int(usage.timeline["parameters"].iloc[0]), highest() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux keeps the record that is read here")
@pytest.mark.slow
def test_a_seven_billion_parameter_model_takes_megabytes():
    child = subprocess.run(
        [sys.executable, "-c", SEVEN_BILLION], capture_output=True, text=True, timeout=200, check=True
    )
    parameters, rise = map(int, child.stdout.split())
    assert parameters == 2 * 6_738_415_616
    assert 0 < rise < 500e6


def test_on_cuda_dropout_keeps_one_byte_an_element():
    def build():
        return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)), torch.ones(128, 64)

    def step(model, x):
        model(x).sum().backward()

    masks = {like: _largest_bool(dry_run(build, step, like)) for like in ("cpu", "cuda")}
    assert masks == {"cpu": 0, "cuda": 128 * 64}


def _largest_bool(usage):
    return max((piece.bytes for piece in usage.pieces if piece.dtype is torch.bool), default=0)


def test_on_cuda_attention_keeps_no_scores_even_where_it_is_checkpointed():
    work = Workload(
        models.configuration("llama", scale=SMALL), Recipe(batch=2, sequence=32, checkpointing=True, optimizer="sgd")
    )
    operators = {
        piece.operator for piece in dry_run(work.build, work.step, "cuda").pieces if piece.kind == "recomputed"
    }
    assert any("efficient_attention" in name for name in operators)
    assert not any("flash_attention_for_cpu" in name for name in operators)


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


def test_on_cuda_every_piece_fills_whole_grains():
    usage = dry_run(lambda: (nn.Linear(3, 3), torch.ones(1, 3)), lambda model, x: model(x).sum().backward(), "cuda")
    assert all(piece.bytes % 512 == 0 for piece in usage.pieces)


@pytest.mark.parametrize(
    "recipe", [Recipe("sgd", "bf16", 4, 32), Recipe("sgd", "autocast", 4, 32), Recipe("sgd", batch=4, sequence=36)]
)
@pytest.mark.parametrize("name", ["llama", "distilbert"])
def test_on_cuda_dry_run_and_estimate_agree(name, recipe):
    """Two accounts of the same operators, neither of which uses the other."""
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "vocab_size": 64} if name == "llama" else {}
    shared = {"num_key_value_heads": 1} if name == "llama" and recipe.precision != "fp32" else {}
    config = models.configuration(name, scale=SMALL, labels=None if name == "llama" else 3, **sizes, **shared)
    work = Workload(config, recipe)
    expected = estimate(config, replace(recipe, device="cuda"))
    assert dry_run(work.build, work.step, "cuda").peak == pytest.approx(expected.peak, rel=0.02)


def test_on_cuda_autocast_is_on_without_a_gpu():
    def peak(device):
        def step(model, x):
            with torch.autocast(device, torch.bfloat16):
                model(x).sum().backward()

        def build():
            return nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), torch.ones(512, 64)

        return dry_run(build, step, "cuda").peak

    assert peak("cuda") == peak("cpu")


def test_numbers_read_are_answered():
    def build():
        return nn.Linear(4, 4), torch.ones(2, 4)

    def step(model, x):
        loss = model(x).sum()
        assert loss.item() == 1.0
        assert bool((x > 0).all())
        loss.backward()

    assert dry_run(build, step).peak > 0


@pytest.mark.parametrize("needs", [lambda x: x.numpy(), lambda x: x[x > 0].sum() + len(x[x > 0].tolist())])
def test_what_needs_values_is_refused_by_line(needs):
    def step(model, x):
        needs(model(x).detach())

    with pytest.raises(CourseError, match=re.escape(f"line {needs.__code__.co_firstlineno} of test_dry_run.py")):
        dry_run(lambda: (nn.Linear(4, 4), torch.ones(2, 4)), step)


def in_halves(make):
    """What `make()` gives under a default of bfloat16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return make()
    finally:
        torch.set_default_dtype(before)


def trained(make):
    """`build` and `step` of the model that `make` gives."""

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


@pytest.mark.parametrize("converted", [lambda: layers().to(torch.bfloat16), lambda: layers().bfloat16().to("cpu")])
@pytest.mark.parametrize("like", ["cpu", "cuda"])
def test_a_model_may_be_converted_after_it_was_built(converted, like):
    ways = converted, lambda: in_halves(layers), lambda: layers(dtype=torch.bfloat16)
    first, *others = (dry_run(*trained(way), like) for way in ways)
    assert all(first.peak == other.peak and first.split == other.split for other in others)
    assert like == "cuda" or first.split["parameters"] == 8 * 20 * 2


ON_A_GPU = [lambda: layers().to("cuda"), lambda: layers().cuda(), lambda: layers(device="cuda")]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
@pytest.mark.parametrize("make", ON_A_GPU)
@pytest.mark.parametrize("like", ["cpu", "cuda"])
def test_a_gpu_that_is_not_there_is_told_apart_from_values_that_are_not(make, like):
    with pytest.raises(CourseError, match='no GPU that PyTorch could use here.*like="cuda"') as told:
        dry_run(*trained(make), like)
    assert "values" not in str(told.value)
    assert dry_run(*trained(layers), "cuda").peak > 0


def test_tensors_on_two_devices_are_told():
    with pytest.raises(CourseError, match="let everything lie on one device"):
        dry_run(*trained(lambda: layers(device="meta")))


@pytest.mark.parametrize(
    ("said", "sign"),
    [
        ("PyTorch is not linked with support for cuda devices", "no GPU"),
        ("Torch not compiled with CUDA enabled", "no GPU"),
        ("No CUDA GPUs are available", "no GPU"),
        ("Found no NVIDIA driver on your system.", "no GPU"),
        ("CUDA out of memory", "needs their values"),
        ("The tensor has a non-zero number of elements", "needs their values"),
    ],
)
def test_every_build_of_pytorch_that_has_no_gpu_is_understood(said, sign):
    def step(model):
        raise RuntimeError(said)

    with pytest.raises(CourseError, match=sign):
        dry_run(lambda: (nn.Linear(2, 2),), step)


@pytest.mark.parametrize("count", [0, 2])
def test_a_build_without_one_model_is_refused(count):
    with pytest.raises(CourseError, match=f"{count} models .* return a tuple with one model"):
        dry_run(lambda: tuple(nn.Linear(2, 2) for _ in range(count)), lambda *parts: None)


@pytest.mark.parametrize("built", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), None])
def test_a_build_that_returns_no_tuple_is_refused(built):
    with pytest.raises(CourseError, match="let it return a tuple"):
        dry_run(lambda: built, lambda *parts: None)


def test_a_model_built_before_is_refused_and_stays_as_it_was():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(CourseError, match="there before; build it, and its optimizer, inside"):
        dry_run(lambda: (model, optimizer), train)
    assert model.weight.grad is None
    assert not optimizer.state


def train(model, optimizer, *scaler):
    loss = model(torch.ones(1, 2)).sum()
    if torch.isnan(loss) and not scaler:
        return
    if scaler:
        scaler[0].scale(loss).backward()
        scaler[0].step(optimizer)
        scaler[0].update()
    optimizer.zero_grad()


def built(*more):
    model = nn.Linear(2, 2)
    return model, torch.optim.AdamW(model.parameters()), *more


def test_a_step_that_leaves_out_its_update_for_what_it_was_told_is_refused():
    with pytest.raises(CourseError, match=r"never called its optimizer.*torch\.isnan"):
        dry_run(built, train)


def test_a_gradient_scaler_is_told_that_all_is_finite():
    assert "update" in dry_run(lambda: built(torch.amp.GradScaler("cpu")), train).by_phase


def test_an_unknown_device_is_refused():
    with pytest.raises(CourseError, match="like='tpu'"):
        dry_run(lambda: None, lambda: None, like="tpu")


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (Recipe(zero_stage=3, ranks=2), "one process that keeps everything"),
        (Recipe(offload=True, device="cuda"), "one process that keeps everything"),
        (Recipe(sequence=4096), "longer than the model's 128 positions"),
    ],
)
def test_a_workload_refuses_what_it_would_not_do(recipe, sentence):
    with pytest.raises(CourseError, match=sentence):
        Workload(models.configuration("distilbert", labels=2, scale=SMALL), recipe)
