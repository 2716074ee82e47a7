"""Chapter 09: its two ranks and its small classifier with a seed of their own, at the scale that the chapter is stored at.

The seed decides the weights and the batches.
"""

from functools import cache, partial

import torch
from torch import nn

from benchmarks.claims import claim
from course_utils import data
from course_utils.distributed import DDP, QSGD, LocalSGD, OuterNesterov, launch
from course_utils.lessons.c09_local_sgd import BATCH, RunPlan, train_on_rank
from course_utils.settings import SCALES

SCALE, STEPS = SCALES["laptop"], 320
SGD = partial(torch.optim.SGD, lr=2.0)
NESTEROV = partial(torch.optim.SGD, lr=0.5, momentum=0.9, nesterov=True)
ADAM = partial(torch.optim.AdamW, lr=3e-3)


@cache
def _texts():
    """Shares by kind, the rows that the mean is judged on, and the id of padding."""
    functions = data.load_functions()
    tokenizer = data.tokenizer_for(functions, SCALE.vocabulary)
    rows = data.tokenize(functions, tokenizer, SCALE.sequence)["train"]
    inputs, labels = torch.tensor(rows["input_ids"]), torch.tensor(rows["labels"])
    by_package = [(inputs[part], labels[part]) for part in labels.argsort(stable=True).tensor_split(2)]
    kinds = {"mixed": [(inputs[rank::2], labels[rank::2]) for rank in range(2)], "by package": by_package}
    return kinds, (inputs[:1000], labels[:1000]), tokenizer.pad_token_id


def _build(seed, vocabulary, padding):
    torch.manual_seed(seed)
    embedding = nn.EmbeddingBag(vocabulary, 32, padding_idx=padding)
    return nn.Sequential(embedding, nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))


def _sync(h, **options):
    return partial(LocalSGD, sync_every=h, **options)


def _runs(seed, strategies, kinds_of_data=("mixed", "by package"), steps=STEPS, **options):
    """Runs by kind and name; `strategies` are pairs of an optimizer and a strategy."""
    kinds, evaluate_on, padding = _texts()
    build = partial(_build, seed, SCALE.vocabulary, padding)
    plans = {
        name: RunPlan(by, steps, strategy, loss_interval=steps, seed=seed, **options)
        for name, (by, strategy) in strategies.items()
    }
    return launch(
        train_on_rank, 2, build, {kind: kinds[kind] for kind in kinds_of_data}, evaluate_on, plans, seconds=600
    )[0]


def _losses(*arguments, **options):
    """The last loss of the ranks' mean in each of these runs."""
    runs = _runs(*arguments, **options)
    return {kind: {name: run.losses[-1] for name, run in of_kind.items()} for kind, of_kind in runs.items()}


@claim("09-drift")
def by_package_a_longer_round_drifts_further_and_further_than_mixed(seed):
    runs = _runs(seed, {"short": (SGD, _sync(5)), "long": (SGD, _sync(20))}, steps=80, note_drift=True)
    largest_drift = {
        kind: {name: max(d for _, d in run.drifts) for name, run in by_name.items()} for kind, by_name in runs.items()
    }
    longer = largest_drift["by package"]["long"] > 1.2 * largest_drift["by package"]["short"]
    return longer and all(
        largest_drift["by package"][name] > 1.2 * largest_drift["mixed"][name] for name in ("short", "long")
    )


@claim("09-noise")
def large_batches_take_most_of_the_drift_from_mixed_data_and_little_from_others(seed):
    """Two ranks in one process; 20 steps, as one round."""
    kinds, _, padding = _texts()

    def drift(shares, batch):
        ends = []
        for rank, (inputs, labels) in enumerate(shares):
            model, draw = _build(seed, SCALE.vocabulary, padding), torch.Generator().manual_seed(2 * seed + rank)
            optimizer = SGD(model.parameters())
            for _ in range(20):
                rows = torch.randint(len(labels), (batch,), generator=draw)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
                optimizer.step()
            ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        return (ends[0] - ends[1]).norm() / 2

    ratio = {kind: drift(shares, 32 * BATCH) / drift(shares, BATCH) for kind, shares in kinds.items()}
    return ratio["mixed"] < 0.5 < ratio["by package"]


@claim("09-cost")
def long_rounds_cost_little_on_mixed_data_and_much_by_package(seed):
    losses = _losses(seed, {"DDP": (SGD, DDP)} | {h: (SGD, _sync(h)) for h in (5, 80, 320)})
    mixed, package = losses["mixed"], losses["by package"]
    costs_little = all(abs(mixed[h] - mixed["DDP"]) < 0.15 for h in (5, 80))
    return costs_little and package[5] > package["DDP"] + 0.2 and package[320] > max(package[5], package[80]) + 0.1


@claim("09-adam")
def with_adam_one_local_step_is_not_ddp_and_a_reset_costs(seed):
    strategies = {"DDP": (ADAM, DDP), "H = 1": (ADAM, _sync(1))}
    strategies |= {state: (ADAM, _sync(20, state=state)) for state in ("keep", "reset")}
    losses = _losses(seed, strategies, of=["mixed"])["mixed"]
    return abs(losses["DDP"] - losses["H = 1"]) > 0.05 and losses["reset"] > losses["keep"] + 0.1


@claim("09-fair")
def ddp_with_momentum_is_no_worse_on_mixed_data_and_far_better_by_package(seed):
    strategies = {"DDP": (SGD, DDP), "fair": (NESTEROV, DDP), "H = 40": (SGD, _sync(40))}
    strategies["DiLoCo"] = (SGD, _sync(40, outer_optimizer=OuterNesterov()))
    losses = _losses(seed, strategies)
    mixed, package = losses["mixed"], losses["by package"]
    lower = mixed["DiLoCo"] < min(mixed["DDP"], mixed["H = 40"]) - 0.1
    return lower and mixed["fair"] < mixed["DiLoCo"] + 0.1 and package["fair"] < 0.6 * package["DiLoCo"]


@claim("09-inside")
def momentum_inside_does_as_well_as_diloco_on_mixed_data_and_fails_by_package(seed):
    strategies = {"plain": (SGD, _sync(40)), "inside": (NESTEROV, _sync(40))}
    strategies["DiLoCo"] = (SGD, _sync(40, outer_optimizer=OuterNesterov()))
    losses = _losses(seed, strategies)
    mixed, package = losses["mixed"], losses["by package"]
    is_as_good = mixed["inside"] < mixed["plain"] and abs(mixed["inside"] - mixed["DiLoCo"]) < 0.2
    return is_as_good and package["inside"] > 2 > 1.2 > package["DiLoCo"]


@claim("09-factor")
def without_momentum_a_large_outer_step_fails(seed):
    outers = [(1.0, 0.0), (1.4, 0.0), (2.0, 0.0), (3.0, 0.0), (0.7, 0.9)]
    strategies = {outer: (SGD, _sync(40, outer_optimizer=OuterNesterov(*outer))) for outer in outers}
    plain, longer, twice, three, diloco = _losses(seed, strategies, of=["mixed"])["mixed"].values()
    return diloco < min(plain, longer) and plain < twice and not three < 2 * twice


@claim("09-bits")
def error_feedback_makes_up_for_most_of_one_level(seed):
    nearest = {"levels": 1, "stochastic": False}
    coarse = {
        "127": {},
        "nearest": nearest,
        "stochastic": {"levels": 1},
        "feedback": nearest | {"error_feedback": True},
    }
    strategies = {"32 bits": (SGD, DDP)} | {name: (SGD, partial(QSGD, **options)) for name, options in coarse.items()}
    losses = _losses(seed, strategies, of=["mixed"])["mixed"]
    is_as_good = all(abs(losses[name] - losses["32 bits"]) < 0.1 for name in ("127", "feedback"))
    return is_as_good and losses["nearest"] > losses["32 bits"] + 0.3 and losses["stochastic"] > losses["nearest"]


@claim("09-noisy")
def one_level_rounded_at_random_ends_where_32_bits_do_with_a_smaller_rate(seed):
    gently = partial(torch.optim.SGD, lr=0.25)
    strategies = {
        "32 bits": (gently, DDP),
        "gently": (gently, partial(QSGD, levels=1)),
        "here": (SGD, partial(QSGD, levels=1)),
    }
    losses = _losses(seed, strategies, of=["mixed"])["mixed"]
    return abs(losses["gently"] - losses["32 bits"]) < 0.1 and losses["here"] > 2


@claim("09-average")
def an_averaged_memory_of_adam_ends_lower_by_package_at_every_rate(seed):
    for lr in (1e-3, 3e-3, 1e-2):
        adam = partial(torch.optim.AdamW, lr=lr)
        strategies = {state: (adam, _sync(20, state=state)) for state in ("keep", "average")}
        losses = _losses(seed, strategies, of=["by package"], steps=170)["by package"]
        if losses["average"] > losses["keep"] - 0.02:
            return False
    return True
