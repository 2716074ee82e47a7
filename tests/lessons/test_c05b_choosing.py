"""The optimizers of the comparison: each makes a step at its own rate, and rates never vanish before the end."""

import pandas as pd
import pytest
import torch
from figures import title

from course_utils import models, optim
from course_utils.lessons import c05b_choosing as lesson
from course_utils.lessons.c05b_choosing import contenders
from course_utils.training import History
from course_utils.units import KiB, MiB


@pytest.mark.parametrize("name", contenders())
def test_each_moves_every_parameter_at_its_rate(name):
    contender = contenders()[name]
    model = models.build("distilbert", labels=3)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = contender.with_lr(0.5 * contender.lr).make(model, 0.5 * contender.lr)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    assert {group["lr"] for group in optimizer.param_groups} == {0.5 * contender.lr}
    assert not any(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("muon", [False, hasattr(torch.optim, "Muon")])
def test_hidden_matrices_and_the_rest_have_rates_of_their_own(muon):
    model = models.build("distilbert", labels=3)
    optimizer = lesson.make_pair(model, 0.5, use_muon=muon, rest_lr=0.25)
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    hidden, others = optim.hidden_matrices(model)
    assert {rates[p] for p in hidden} == {0.5}
    assert {rates[p] for p in others} == {0.25}
    assert len(rates) == len(list(model.parameters()))


def test_a_range_says_how_many_diverged():
    assert lesson.format_range(pd.Series([1.0, 2.0])) == "1.00 to 2.00"
    assert lesson.format_range(pd.Series([1.0, float("nan"), 2.0])) == "1.00 to 2.00, 1 diverged"


@pytest.mark.parametrize("name", contenders())
def test_the_rate_is_never_zero_within_the_run(name):
    factors = [contenders()[name].factor(step, 91) for step in range(1, 92)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == 1


def test_each_runs_at_the_best_rate_of_the_stored_sweep():
    sweep = lesson.stored_runs(lesson.SWEEP_SEEDS)
    with_cosine = sweep[sweep["schedule"] == "cosine"]
    best = lesson.best_rates(with_cosine)
    assert {name: contender.lr for name, contender in contenders().items()}.items() <= best.items()
    for name, rate in best.items():
        rates = sorted(with_cosine.loc[with_cosine["name"] == name, "lr"].unique())
        assert rates[0] < rate < rates[-1], f"the best rate of {name} is at the edge of its grid"


def test_a_run_that_diverged_is_never_the_best():
    runs = pd.DataFrame({"name": "A", "lr": [0.1, 0.1, 1.0, 1.0], "loss": [2.0, 3.0, 0.0, float("nan")]})
    assert lesson.best_rates(runs) == {"A": 0.1}
    assert lesson.losses_of_seeds(runs) == {0.1: [2.0, 3.0], 1.0: [0.0, float("inf")]}


@pytest.mark.parametrize("itemsize", [2, 4])
def test_sizes_from_shapes_are_what_optimizers_keep(itemsize):
    sizes = lesson.sizes_of("distilbert", itemsize)
    model = models.build("distilbert")
    model.to({2: torch.bfloat16, 4: torch.float32}[itemsize])
    kinds = {"AdamW": torch.optim.AdamW, "SGD, momentum": lambda ps: torch.optim.SGD(ps, momentum=0.9)}
    kinds |= {"AdamW, 8 bits": optim.AdamW8bit, "Muon": lambda _: lesson.make_muon(model, 0.1)}
    for name, kind in kinds.items():
        optimizer = kind(list(model.parameters()))
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        states = [
            t for state in optimizer.state.values() for key, t in state.items() if torch.is_tensor(t) and key[0] != "q"
        ]
        assert sizes[name]["optimizer state"] == sum(t.nbytes for t in states), name
        assert sizes[name]["parameters"] == models.parameter_bytes(model)
    assert sizes["Adafactor, in backward"]["gradients"] == max(p.nbytes for p in model.parameters())


def test_bytes_add_up_and_the_title_says_what_fits():
    figure, alt = lesson.bytes_figure("distilbert", card=2**23)
    sizes = lesson.sizes_of("distilbert")
    total = sum(sum(parts.values()) for parts in sizes.values())
    width = sum(patch.get_width() for patch in figure.axes[0].patches)
    assert width * (MiB if "MiB" in figure.axes[0].get_xlabel() else KiB) == pytest.approx(total)
    fitting = sum(sum(parts.values()) <= 8 * MiB for parts in sizes.values())
    assert f"{fitting} of 6" in title(figure.axes[0])
    assert all(name in alt for name in sizes)


def test_the_figures_draw_every_stored_run():
    sweep, race = lesson.stored_runs(lesson.SWEEP_SEEDS), lesson.stored_runs(lesson.RACE_SEEDS)
    with_cosine = sweep[sweep["schedule"] == "cosine"]
    figure, alt = lesson.rates_figure(with_cosine)
    assert [title(axes).partition(":")[0] for axes in figure.axes] == list(contenders())
    assert alt.count(" at 0.001") == 6
    of_both = sweep[sweep["name"].isin(["Adam", "AdamW"])]
    crossed, alt = lesson.crossed_figure(of_both)
    assert [title(axes) for axes in crossed.axes] == ["schedule: constant", "schedule: cosine"]
    assert alt.count("Adam: ") == alt.count("AdamW: ") == 2
    with_cosine = race[race["schedule"] == "cosine"]
    figure, _ = lesson.race_figure(with_cosine)
    assert sum(len(line.get_xdata()) for line in figure.axes[0].lines) == with_cosine[["loss", "test"]].count().sum()


def test_the_stored_pairs_cross_the_optimizers_of_the_race():
    """Each pair has a loss for every seed of the race, and no such run is among those of the race itself."""
    table, race = lesson.stored_rests(), lesson.stored_runs(lesson.RACE_SEEDS)
    assert all(len(losses.split(", ")) == len(lesson.RACE_SEEDS) for losses in table.to_numpy().flat)
    muon = race.loc[race["name"] == "Muon", "loss"]
    assert table["training", 1e-2]["Muon"] == ", ".join(f"{loss:.2f}" for loss in muon)
    assert len(race) == len(lesson.RACE_SEEDS) * race["name"].nunique()


def test_a_run_is_judged_by_its_last_steps():
    history = History(steps=[{"step": i + 1, "loss": float(i >= 5), "tokens": 1, "seconds": i * i} for i in range(25)])
    assert lesson.final_loss(history) == 1.0
    assert lesson.undisturbed_step(history) == pytest.approx(5.6)
