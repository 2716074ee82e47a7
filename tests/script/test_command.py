"""Of the room: the command as people type it, alone, with ranks, under torchrun, under Accelerate."""

import shutil
import sys
from pathlib import Path

import pytest
from processes import COURSE, PATIENCE, TORCHRUN, background_process, flags, parameters_in, wait_for
from small_job import largest_difference, run_job, write_small_model

from course_utils.cli import main
from course_utils.script import Job, examples


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return write_small_model(folder, precision="fp64", steps=4, save_every=2, micro_batch=3, quick=True)


@pytest.fixture(scope="module")
def reference(job, tmp_path_factory):
    return run_job({**job, "out": tmp_path_factory.mktemp("reference")})[0]


# Accelerate starts ranks by torchrun only where it is told of several GPUs; there need not be any.
ACCELERATE = (
    "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"
)
COMMAND = ["-m", "course_utils.cli", "train"]
LAUNCHERS = {
    "with ranks": [*COURSE, "--ranks", 2],
    "torchrun": [*TORCHRUN, "--standalone", "--nproc-per-node", 2, *COMMAND],
    "accelerate": [sys.executable, "-m", "accelerate.commands.launch", *ACCELERATE.split(), *COMMAND],
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_train_as_one_does(job, reference, launcher, tmp_path):
    text = Path(shutil.copy(job["data"], tmp_path))
    fields = {**job, "strategy": "fsdp2", "data": text}
    command = [*LAUNCHERS[launcher], *flags(fields, tmp_path / "run")]
    with background_process(command, tmp_path / "output.log") as process:
        if launcher == "with ranks":  # The command has written the tokens for its ranks.
            wait_for(lambda: list((tmp_path / "run").glob("examples-*.pt")))
            text.unlink()
        code = process.wait(PATIENCE)
    output = (tmp_path / "output.log").read_text(encoding="utf-8", errors="replace")
    assert code == 0, output
    assert "4 updates, " in output
    assert "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" not in output  # nothing restarts here, or it is set
    assert largest_difference(parameters_in(tmp_path / "run", 4), reference) < 1e-10


def test_alone_it_says_what_it_took_beside_what_was_predicted(job, tmp_path, capsys):
    fields = {**job, "precision": "fp32", "quick": False}
    assert main(["train", *flags(fields, tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "4 updates, " in output
    measured, predicted = (float(output.split(word)[1].split(" MiB")[0]) for word in ("peak of rank 0 ", "predicted "))
    assert measured == pytest.approx(predicted, rel=0.02)


# What is asked for, and what is answered before any process starts.
REFUSED = {
    "zero1 alone": (["--strategy", "zero1"], "shards over ranks, but this is one process; add --ranks 2, for example."),
    "ranks for themselves": (["--ranks", "2"], "2 processes would train independently; choose --strategy ddp"),
    "a batch that does not divide": (["--ranks", "5", "--strategy", "ddp"], "A batch of 12 does not divide"),
    "hsdp on three": (["--ranks", "3", "--strategy", "hsdp", "--replicas", "2"], "3 ranks do not make 2 groups of two or more"),
    "a strategy that is none": (["--strategy", "zero9"], "No strategy is called 'zero9'; did you mean zero1"),
    "an optimizer that is none": (["--optimizer", "torch.Qqqqqq"], "No optimizer 'torch.Qqqqqq' trains here; choose torch.CLASS"),
    "no class but a near name": (["--optimizer", "course.Adamm"], "trains here; did you mean course.Adam"),
    "one that calls the model": (["--optimizer", "torch.LBFGS"], "No optimizer 'torch.LBFGS' trains here; "),
    "an option that is none": (["--option", "nothing"], "--option nothing is not NAME=VALUE"),
    "an option that it lacks": (["--option", "foo=1"], "adamw does not take this: "),
    "a model without data": (["--data", "nowhere.txt"], "--data nowhere.txt cannot be read (No such file or directory)"),
    "no schedule": (["--warmup", "9"], "--warmup 9 does not end before the last of 4 steps"),
    "a loss by pieces of the own task": (["--model", "", "--chunked-loss", "9"], "give --model and --data, or neither"),
    "no ranks": (["--ranks", "0"], "--ranks must be a whole number from 1 on, not 0"),
    "restarts of nothing": (["--max-restarts", "2"], "--max-restarts requires --ranks"),
    "ranks and no text": (["--ranks", "2", "--strategy", "ddp", "--data", "/dev/null"], "There is no text in /dev/null"),
    "a folder that is a file": (["--ranks", "2", "--strategy", "ddp", "--out", "/dev/null"], "/dev/null cannot be written"),
    "no next token": (["--sequence", "1"], "use a --sequence of 2 or more"),
    "a log that is not there": (["--logs", "tensorboard"], "TensorBoard is not installed; pip install tensorboard"),
    "too long": (["--sequence", "999"], "has 64 positions, but --sequence is 999"),
    "too large a batch": (["--batch", "99999", "--micro-batch", "1"], "but a batch needs 99999; use a smaller --batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_one_sentence_before_any_process_starts(job, name, tmp_path, capsys, monkeypatch):
    arguments, sentence = REFUSED[name]
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("A process was started."))
    own_flags = flags(job, tmp_path)
    for word in arguments[::2]:
        if word in own_flags:
            del own_flags[own_flags.index(word) : own_flags.index(word) + 2]
    assert main(["train", *own_flags, *arguments]) == 2
    errors = capsys.readouterr().err
    assert sentence in errors
    assert errors.count("\n") == 1


class BecameTorchrunError(Exception):
    """Its command line and its variables."""


@pytest.fixture
def torchrun_is_caught(monkeypatch):
    def become(_, *command_and_environment):
        raise BecameTorchrunError(*command_and_environment)

    monkeypatch.setattr("os.execve", become)


def test_torchrun_takes_no_flag_of_a_run_for_one_of_its_own(job, tmp_path, torchrun_is_caught):
    from torch.distributed.run import parse_args

    own_flags = flags({**job, "strategy": "ddp", "logs": (), "log_every": 3, "seed": 1}, tmp_path)
    with pytest.raises(BecameTorchrunError) as became:
        main(["train", *own_flags, "--ranks", "2"])
    parsed = parse_args(became.value.args[0][3:])
    assert parsed.training_script == "course_utils.cli"
    assert parsed.training_script_args == ["train", *own_flags]
    assert parsed.nproc_per_node == "2"


@pytest.mark.parametrize("task", ["text", "own task"])
def test_a_run_on_ranks_tokenizes_once(job, task, tmp_path, monkeypatch, torchrun_is_caught):
    """The process that becomes torchrun does, and not its ranks; a rank that is started by hand does so itself."""
    fields = {**job, "strategy": "ddp"} if task == "text" else {"batch": 4, "sequence": 16, "strategy": "ddp"}
    module, name = (examples, "tokenizer_of") if task == "text" else (examples.data, "tokenize")
    tokenize = getattr(module, name)
    calls = []
    monkeypatch.setattr(module, name, lambda *arguments: calls.append(arguments) or tokenize(*arguments))
    with pytest.raises(BecameTorchrunError) as became:
        main(["train", *flags(fields, tmp_path), "--ranks", "2"])
    assert len(calls) == 1
    for name, value in became.value.args[1].items():
        monkeypatch.setenv(name, value)
    on_rank = examples.load_examples(Job(**fields, out=tmp_path))[1]
    assert len(calls) == 1
    examples.load_examples(Job(**{**fields, "sequence": 12}, out=tmp_path))
    assert len(calls) == 2, "what was prepared for another job is left alone"
    monkeypatch.delenv("COURSE_EXAMPLES")
    by_hand = examples.load_examples(Job(**fields, out=tmp_path))[1]
    assert len(calls) == 3
    assert (on_rank.key, on_rank.fixed, len(on_rank)) == (by_hand.key, by_hand.fixed, len(by_hand))
    assert on_rank.columns.keys() == by_hand.columns.keys()
    rows = list(range(len(by_hand)))
    assert all((on_rank[rows][name] == column).all() for name, column in by_hand.columns.items())
    assert (on_rank.tokens == by_hand.tokens).all()
    assert (on_rank.weights == by_hand.weights).all()
