"""DeepSpeed's ZeRO trains as one process does, and goes on from its own checkpoints."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from small_job import largest_difference, parameters, write_small_model

from course_utils.cli import main
from course_utils.distributed import RankError, launch
from course_utils.errors import CourseError
from course_utils.script import Job, train

needs_deepspeed = pytest.mark.skipif(not find_spec("deepspeed"), reason="needs DeepSpeed: docs/commands.md")
STAGES, ROOT = (1, 2, 3), Path(__file__).parents[2]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    fields = write_small_model(folder, steps=5, micro_batch=3, clipping=True, quick=True, save_every=2, keep=3)
    return {**fields, "warmup": 2, "optimizer": "torch.AdamW"}


@pytest.fixture(scope="module")
def reference(job, tmp_path_factory):
    return {
        name: run_rank({**job, "precision": name, "out": tmp_path_factory.mktemp(name)})
        for name in ("fp32", "autocast")
    }


def run_rank(fields):
    """Whole parameters, losses and what was said; the parameters' type; how many of their elements are on this rank."""
    lines = []
    result = train(Job(**fields), say=lines.append)
    plain = result.engine.plain
    kinds = {p.dtype for p in plain.parameters()}
    if not fields.get("strategy"):
        return parameters(result.engine), result.losses, lines, kinds, sum(p.numel() for p in plain.parameters())
    import deepspeed

    num_elements = sum(getattr(p, "ds_tensor", p).numel() for p in plain.parameters())
    with deepspeed.zero.GatheredParameters(list(plain.parameters())):
        state = {name: p.detach().clone() for name, p in plain.named_parameters()}
    return state, result.losses, lines, kinds, num_elements


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_train_as_one_process_does_and_go_on_from_what_is_whole(job, reference, stage, tmp_path):
    """With dropout, accumulation, clipping and a schedule; then the newest checkpoint is cut short, and the next lacks a file."""
    fields = {**job, "strategy": f"deepspeed-{stage}", "out": tmp_path / "run"}
    single, losses, _, _, elements = reference["fp32"]
    undisturbed = launch(run_rank, 2, fields)
    for state, _, _, kinds, num_elements in undisturbed:
        assert largest_difference(state, single) < 1e-5
        assert kinds == {torch.float32}
        assert num_elements == pytest.approx(elements / 2 if stage == 3 else elements, rel=0.01)
    totals = {step: sum(rank_losses[step] for _, rank_losses, *_ in undisturbed) for step in losses}
    assert totals == pytest.approx(losses, rel=1e-6)

    newest, next_one, _ = sorted((tmp_path / "run" / "checkpoints").iterdir(), reverse=True)
    cut = newest / "deepspeed" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    os.truncate(cut, cut.stat().st_size // 2)
    (next_one / "deepspeed" / cut.name).unlink()
    (resumed, resumed_losses, lines, _, _), _ = launch(run_rank, 2, fields)
    assert largest_difference(resumed, undisturbed[0][0]) == 0
    assert resumed_losses == {step: undisturbed[0][1][step] for step in (3, 4, 5)}
    assert f"deepspeed/{cut.name} is shorter than it was" in lines[0]
    assert "cannot be read (FileNotFoundError)" in lines[1]
    assert lines[2] == "Goes on after update 2; updates 3 to 5 are computed again."


@needs_deepspeed
@pytest.mark.slow
def test_halves_are_those_that_were_asked_for(job, reference, tmp_path):
    """Autocast rounds what travels, too, so parameters differ by parts of an update; bf16 has copies in float32."""
    for precision, kind in (("autocast", torch.float32), ("bf16", torch.bfloat16)):
        fields = {
            **job,
            "precision": precision,
            "strategy": "deepspeed-2",
            "save_every": 0,
            "out": tmp_path / precision,
        }
        ranks = launch(run_rank, 2, fields)
        losses = {step: sum(rank_losses[step] for _, rank_losses, *_ in ranks) for step in range(1, 6)}
        assert ranks[0][3] == {kind}
        assert losses == pytest.approx(reference["autocast"][1], rel=1e-3)
        assert losses[1] != reference["fp32"][1][1]
        if precision == "autocast":
            assert losses[1] == pytest.approx(reference["autocast"][1][1], rel=1e-6)
            assert 0 < largest_difference(ranks[0][0], reference["autocast"][0]) < 2e-3


@needs_deepspeed
@pytest.mark.slow
def test_only_as_many_ranks_of_the_same_stage_go_on_and_others_are_told(job, tmp_path):
    fields = {**job, "steps": 3, "micro_batch": 2, "strategy": "deepspeed-1", "out": tmp_path / "run"}
    launch(run_rank, 2, fields)
    with pytest.raises(RankError, match="2 ranks wrote it, and only as many can read it, not 3"):
        launch(run_rank, 3, fields)
    with pytest.raises(RankError, match="its engine is 'deepspeed-1', here 'deepspeed-2'"):
        launch(run_rank, 2, {**fields, "strategy": "deepspeed-2"})
    with pytest.raises(CourseError, match="its engine is 'deepspeed-1', here 'torch'"):
        train(Job(**{**fields, "strategy": "none"}), say=[].append)
    for file in (tmp_path / "run" / "checkpoints").glob("*/deepspeed/mp_rank_00_model_states.pt"):
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(RankError, match="None of the checkpoints in .* it cannot be read"):
        launch(run_rank, 2, fields)


@needs_deepspeed
@pytest.mark.slow
def test_the_command_says_nothing_that_is_deepspeeds_own(tmp_path):
    """Under torchrun, whose variables DeepSpeed reads."""
    sizes = ["--steps", "4", "--batch", "8", "--micro-batch", "2", "--sequence", "16", "--quick", "--clipping"]
    command = [sys.executable, "-m", "course_utils.cli", "train", "--out", str(tmp_path / "run"), *sizes]
    result = subprocess.run(
        [*command, "--strategy", "deepspeed-3", "--ranks", "2"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"4 updates, [\d,]+ tokens a second\.\n", result.stdout)
    assert not {"DeepSpeed", "deepspeed", "FutureWarning"} & set(re.findall(r"\w+", result.stderr))


def test_without_deepspeed_a_sentence_comes_before_any_process(job, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # not to be found, if it is here
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("a process was started"))
    for stage in STAGES:
        with pytest.raises(CourseError, match="install it .* pip install --no-build-isolation"):
            Job(**job, strategy=f"deepspeed-{stage}", out=tmp_path)
    assert main(["train", "--out", str(tmp_path / "run"), "--strategy", "deepspeed-2", "--ranks", "2"]) == 2
    assert "deepspeed-2 needs DeepSpeed 0.19 or newer" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
