"""Every pair of flags: it trains, or it is refused in one sentence before anything starts. The table in the docs is this one."""

import itertools
import math
from functools import partialmethod
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
from small_job import write_small_model
from torch import nn

from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.script import Job, train
from course_utils.script.job import PRECISIONS, STRATEGIES, BatchSplit

PAGE = Path(__file__).parents[2] / "docs" / "train.md"
OPTIMIZERS = ("adamw", "course.AdamW", "adamw8bit", "adafactor", "muon")
# What a flag is called, and the fields of a job that it stands for.
FLAGS = {
    **{f"--strategy {name}": {"strategy": name} for name in STRATEGIES},
    **{f"--optimizer {name}": {"optimizer": name} for name in OPTIMIZERS},
    **{f"--precision {name}": {"precision": name} for name in PRECISIONS},
    "accumulation": {"micro_batch": 1},
    "--clipping": {"clipping": True},
    "--checkpointing": {"checkpointing": True},
    "--chunked-loss 16": {"chunked_loss": 16},
    "--packed": {"packed": True},
    "--lora 2": {"lora": 2},
    "--compile": {"compiled": True},
}


def fields_of(*names):
    fields = {field: value for name in names for field, value in FLAGS[name].items()}
    if len(fields) < len(names):
        return None  # the same flag twice
    return fields | ({"replicas": 2} if fields.get("strategy") == "hsdp" else {})


PAIRS = [pair for pair in itertools.combinations(FLAGS, 2) if fields_of(*pair) is not None]


def find_failures(plain, pairs, folder):
    """What is wrong with each pair that does not train here, on this rank."""
    wrong = {}
    for number, pair in enumerate(pairs):
        fields = {**plain, **fields_of(*pair), "out": folder / str(number)}
        try:
            losses = train(Job(**fields), say=len).losses.values()
            if not losses or not all(map(math.isfinite, losses)):
                wrong[pair] = f"losses {list(losses)}"
        except CourseError as error:
            wrong[pair] = str(error)
    return wrong


def find_failures_captured(plain, pairs, folder):
    """The same where steps are captured as for the compiler, and then run as they are: compiling takes half a minute a pair."""
    as_it_is = partialmethod(nn.Module.compile, backend="aot_eager")
    with patch.object(nn.Module, "compile", as_it_is):
        return find_failures(plain, pairs, folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return {**write_small_model(folder), "steps": 2, "batch": 4, "quick": True, "out": folder / "nothing"}


def groups():
    by_group = {}
    for pair in PAIRS:
        name = fields_of(*pair).get("strategy", "none")
        if find_spec("deepspeed") or not name.startswith("deepspeed"):
            by_group.setdefault((name, "--compile" in pair), []).append(pair)
    return by_group


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", groups(), ids=lambda group: f"{group[0]}{', compiled' * group[1]}")
def test_every_legal_pair_trains(plain, group, tmp_path):
    pairs = [pair for pair in groups()[group] if not refusal(pair, plain)]
    run = find_failures_captured if group[1] else find_failures
    ranks = {"none": 1, "hsdp": 4}.get(group[0], 2)
    failures = [run(plain, pairs, tmp_path)] if ranks == 1 else launch(run, ranks, plain, pairs, tmp_path, seconds=600)
    assert failures == ranks * [{}]


@pytest.mark.slow
def test_a_step_is_really_compiled(plain, tmp_path):
    assert find_failures(plain, [("--strategy none", "--compile")], tmp_path) == {}


def test_some_pairs_train(plain, tmp_path):
    """A few of those above, so that each run of the tests has some."""
    others = ("accumulation", "--packed", "--chunked-loss 16", "--optimizer muon")
    assert find_failures(plain, [("--strategy none", other) for other in others], tmp_path) == {}


def test_the_page_has_the_table(plain):
    assert table(plain) in PAGE.read_text(encoding="utf-8")


def table(plain) -> str:
    """Strategies across, all else down; below, what else does not go together."""
    strategies = [name for name in FLAGS if name.startswith("--strategy")]
    others = [name for name in FLAGS if name not in strategies]
    head = ["", *(name.removeprefix("--strategy ") for name in strategies)]
    rows = [[other, *("–" if refusal((name, other), plain) else "yes" for name in strategies)] for other in others]
    lines = [head, ["---"] + len(strategies) * [":-:"], *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    refused = {pair: refusal(pair, plain) for pair in itertools.combinations(others, 2) if pair in PAIRS}
    return text + "\n\n" + "\n".join(f"- `{a}` with `{b}`: {reason}" for (a, b), reason in refused.items() if reason)


def refusal(pair, plain) -> str:
    """Why a pair is refused, or nothing; DeepSpeed is taken to be there."""
    fields = fields_of(*pair)
    try:
        with patch.multiple("course_utils.script.job", find_spec=lambda name: True, version=lambda name: "99"):
            BatchSplit(Job(**{**plain, **fields}), {"none": 1, "hsdp": 4}.get(fields.get("strategy", "none"), 2))
    except CourseError as error:
        return str(error)
    return ""
