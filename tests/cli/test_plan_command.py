"""`course plan` as a command."""

import json
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from datasets import Dataset

import course_utils
from course_utils import settings as settings_room
from course_utils.cli import main
from course_utils.cli.planning import progress
from course_utils.memory import Recipe
from course_utils.memory.planning import plan as planning
from course_utils.memory.planning import search

CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32000,  # what is large about it are its logits
    "max_position_embeddings": 1024,
}
QUESTION = ["--loop", "own", "--device", "cpu", "--batch", "4", "--sequence", "1024"]
FITTING, TOO_LARGE = [*QUESTION, "--memory", "4GB"], [*QUESTION, "--memory", "2GB"]


@pytest.fixture(autouse=True)
def _few_changes(monkeypatch):
    """Leaves only the first changes, since all are tested with `memory.plan`."""
    monkeypatch.setattr(search, "CHANGES", search.CHANGES[:5])


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def plan(config, monkeypatch):
    """A `plan` that always answers for the small model."""
    mock = Mock(return_value=planning.plan(config, 4 * 2**30, Recipe(batch=4, sequence=64, device="cpu")))
    monkeypatch.setattr(planning, "plan", mock)
    return mock


def strict(text):
    """The content of a JSON text; NaN fails the test, since most programs refuse it."""
    return json.loads(text, parse_constant=pytest.fail)


def test_it_fits_or_it_does_not_and_the_exit_code_says_so(config, capsys):
    assert main(["plan", config, *FITTING]) == 0
    assert "fits in 4.00 GiB" in capsys.readouterr().out
    assert main(["plan", config, *TOO_LARGE, "--json"]) == 1
    answer = strict(capsys.readouterr().out)
    assert answer["verdict"] == "does not fit"
    assert answer["recipe"]["batch"] == 4
    assert ["micro-batch of 1"] in [row["names"] for row in answer["rows"]]


def test_a_stored_answer_is_read_without_torch_or_transformers(config, capsys):
    main(["plan", config, *FITTING])
    first = capsys.readouterr().out
    program = (
        "import sys; from course_utils.cli import main; code = main(sys.argv[1:]); "
        "names = ('torch', 'transformers', 'pandas', 'numpy', 'jaxtyping'); "
        "print('imported:', [name for name in names if name in sys.modules]); sys.exit(code)"
    )
    argv = [sys.executable, "-c", program, "plan", config, *FITTING]
    second = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=100)
    assert second.stdout == first + "imported: []\n"


def test_another_file_of_the_same_name_is_another_question(tmp_path, capsys):
    path, answers = tmp_path / "config.json", []
    for width in (64, 128):
        path.write_text(json.dumps({**CONFIG, "hidden_size": width}))
        main(["plan", str(path), "--why", "batch=1", "batch=1", "--json"])
        answers.append(strict(capsys.readouterr().out)["before"]["update"]["parameters"])
    assert answers[0] < answers[1]


@pytest.mark.parametrize("name", ["llama", "LLaMA"])
def test_the_courses_own_model_at_another_scale_is_another_question(name, monkeypatch, capsys):
    answers = []
    for scale in ("smoke", "laptop"):
        monkeypatch.setenv("COURSE_SCALE", scale)
        settings_room.settings.cache_clear()
        main(["plan", name, "--why", "batch=1", "batch=1", "--json"])
        answers.append(strict(capsys.readouterr().out)["before"]["update"]["parameters"])
    assert answers[0] < answers[1]


def test_a_module_of_ones_own(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "def build():\n    return GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=1, n_head=8, vocab_size=100))\n"
    )
    assert main(["plan", f"{tmp_path}/mine.py:build", "--memory", "2GB", "--beside"]) == 0
    output = capsys.readouterr().out
    assert "build: fits" in output
    assert "Beside training: evaluation" in output


def test_a_file_may_import_its_neighbors(tmp_path, capsys):
    (tmp_path / "neighbor.py").write_text(
        "from transformers import GPT2Config\nCONFIG = GPT2Config(n_embd=32, n_layer=1, n_head=2)"
    )
    (tmp_path / "mine.py").write_text(
        "from neighbor import CONFIG\nfrom transformers import GPT2LMHeadModel\n"
        "def build():\n    return GPT2LMHeadModel(CONFIG)\n"
    )
    options = ["--device", "cpu", "--why", "batch=1", "batch=1", "--json"]
    assert main(["plan", f"{tmp_path}/mine.py:build", *options]) == 0
    answer = strict(capsys.readouterr().out)["before"]["update"]["parameters"]
    block = 12 * 32**2 + 13 * 32  # with biases and two norms
    assert answer == 4 * ((50257 + 1024) * 32 + block + 2 * 32)


@pytest.mark.slow
def test_a_model_with_few_positions_is_planned_for_as_many_tokens_as_it_takes(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 77}))
    assert main(["plan", str(tmp_path), "--memory", "24GB", "--json"]) == 0
    assert strict(capsys.readouterr().out)["recipe"]["sequence"] == 77
    assert main(["plan", str(tmp_path), "--memory", "24GB", "--sequence", "78"]) == 2


@pytest.mark.slow
def test_weights_that_are_published_in_16_bits_are_planned_in_32_with_a_word(config, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "bfloat16"}))
    for options, has_remark in (([], True), (["--precision", "bf16"], False)):
        main(["plan", str(tmp_path), *FITTING, *options])
        assert ("add --precision bf16" in capsys.readouterr().out) is has_remark
    main(["plan", config, *FITTING])
    assert "published in" not in capsys.readouterr().out


def test_a_network_with_inputs_of_its_own(tmp_path, capsys):
    file = tmp_path / "net.py"
    text = (
        "import torch\nfrom torch import nn\nWIDTH = 64\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, x, y):\n        return nn.functional.mse_loss(super().forward(x), y)\n"
        "def build():\n    return Net(WIDTH, WIDTH)\n"
        "def batch(b, s):\n    return torch.randn(b, WIDTH), torch.randn(b, WIDTH)\n"
    )
    file.write_text(text)
    argv = ["plan", f"{file}:build", "--memory", "2GB", "--json"]
    assert main(argv) == 0
    small = strict(capsys.readouterr().out)
    assert small["largest"] == {"largest batch": small["largest"]["largest batch"], "longest sequence": None}
    file.write_text(text.replace("WIDTH = 64", "WIDTH = 4096"))
    main(argv)
    large = strict(capsys.readouterr().out)
    sizes = [answer["instants"]["update"]["by_kind"]["parameters"] for answer in (small, large)]
    assert sizes[1] > 1000 * sizes[0]
    file.write_text(text.replace("def batch", "def other"))
    assert main(argv) == 2
    assert "a function batch(b, s)" in capsys.readouterr().err


def test_lengths_set_the_sequence_and_other_examples_are_another_question(config, tmp_path, capsys):
    for length in (200, 300):
        Dataset.from_dict({"length": [10, length]}).save_to_disk(tmp_path / "examples")
        main(["plan", config, "--data", str(tmp_path / "examples"), "--emit", "trl"])
        assert f"max_length: {length}" in capsys.readouterr().out


def test_a_file_that_says_less_than_the_recipe_is_no_answer_to_what_fits(config, capsys):
    argv = ["plan", config, "--offload", "--emit", "trl"]
    assert main([*argv, "--memory", "8GB"]) == 2
    captured = capsys.readouterr()
    assert "TRL has no setting for this: offload is torch.distributed.fsdp.CPUOffloadPolicy" in captured.err
    assert not captured.out
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("# No setting: offload")


def test_the_global_batch_is_kept(config, capsys):
    main(["plan", config, "--emit", "trl", "--batch", "4", "--global-batch", "32"])
    assert "gradient_accumulation_steps: 8" in capsys.readouterr().out
    assert main(["plan", config, "--emit", "trl", "--batch", "5", "--global-batch", "32"]) == 2
    assert "does not divide" in capsys.readouterr().err


def test_two_recipes_are_compared(config, capsys):
    assert main(["plan", config, "--why", "batch=1", "batch=1,checkpointing"]) == 0
    assert "peak:" in capsys.readouterr().out


def test_a_recipe_is_written_out(config, capsys):
    assert main(["plan", config, "--emit", "trl", "--lora", "4"]) == 0
    assert "lora_r: 4" in capsys.readouterr().out


def test_a_message_is_explained(config, tmp_path, capsys):
    (tmp_path / "oom").write_text("CUDA out of memory. Tried to allocate 20.00 MiB.")
    assert main(["plan", config, "--explain", str(tmp_path / "oom")]) == 0
    assert "requested 20.0 MiB" in capsys.readouterr().out


def test_ranks_are_shared_out_among_nodes(config, capsys):
    argv = ["plan", config, "--ranks", "8", "--zero-stage", "3", "--batch", "2", "--global-batch", "32"]
    assert main([*argv, "--emit", "slurm", "--nodes", "2"]) == 0
    output = capsys.readouterr().out
    assert "#SBATCH --nodes=2" in output
    assert "--nproc-per-node 4" in output
    assert "--batch 32 --micro-batch 2" in output


def test_of_a_compiled_step_no_number_is_guessed(config, capsys):
    assert main(["plan", config, *FITTING, "--compiled"]) == 2
    output = capsys.readouterr().out
    assert "the compiler chooses what is kept" in output
    assert "peak: unknown" in output
    assert main(["plan", config, *FITTING, "--compiled", "--json"]) == 2
    answer = strict(capsys.readouterr().out)
    assert (answer["verdict"], answer["peak"], answer["need"]) == ("unknown", None, None)
    assert main(["plan", config, "--why", "batch=1", "batch=1,compiled"]) == 2


def test_a_compiled_recipe_is_written_out(config, capsys):
    assert main(["plan", config, "--emit", "trl", "--compiled"]) == 0
    assert "torch_compile: true" in capsys.readouterr().out


def test_galore_is_an_option_and_another_teacher_is_another_question(config, tmp_path, capsys):
    path, parameters = tmp_path / "config.json", []
    argv = ["plan", config, "--sequence", "32", "--galore", "16", "--teacher", str(path)]
    for blocks in (2, 3):
        path.write_text(json.dumps({**CONFIG, "num_hidden_layers": blocks}))
        assert main([*argv, "--why", "galore=0", "batch=8", "--json"]) == 0
        answer = strict(capsys.readouterr().out)
        before, after = (answer[name]["update"] for name in ("before", "after"))
        assert after["optimizer state"] < before["optimizer state"]
        parameters.append(after["parameters"])
    assert parameters[0] < parameters[1]
    assert main([*argv, "--memory", "4GB", "--zero-stage", "1", "--ranks", "2"]) == 2
    assert "leave galore or zero_stage out" in capsys.readouterr().err


@pytest.mark.slow
def test_parts_of_a_sequence_are_as_many_as_ranks(config, capsys):
    argv = ["plan", config, "--device", "cpu", "--memory", "400MB", "--sequence", "64", "--context-parallel", "4"]
    assert main([*argv, "--json"]) == 0
    answer = strict(capsys.readouterr().out)
    assert (answer["recipe"]["ranks"], answer["recipe"]["context_parallel"]) == (4, 4)
    assert answer["largest"]["longest sequence"] % 8 == 0
    assert main([*argv, "--emit", "train"]) == 2
    assert "no flag for context_parallel=4" in capsys.readouterr().err
    assert main([*argv, "--emit", "trl"]) == 2
    assert "no setting for attention on this ring" in capsys.readouterr().err
    assert main([*argv, "--sequence", "60"]) == 2
    assert "take a multiple of 8" in capsys.readouterr().err


def test_the_settings_of_a_row_come_from_the_stored_plan(config, capsys, monkeypatch):
    """Without a terminal, a line says once that it takes a while."""
    plan = Mock(wraps=planning.plan)
    monkeypatch.setattr(planning, "plan", plan)
    monkeypatch.setattr(progress, "SECONDS_BEFORE_REMARK", 0.0)
    assert main(["plan", config, *TOO_LARGE]) == 1
    assert capsys.readouterr().err.count("Planning takes") == 1
    for kind, row in (("trl", "1"), ("trl", "2"), ("accelerate", "1")):
        assert main(["plan", config, *TOO_LARGE, "--emit", kind, "--row", row]) == 0
    plan.assert_called_once()
    captured = capsys.readouterr()
    assert "Planning takes" not in captured.err
    assert "per_device_train_batch_size: 1\nmax_length: 1024\ngradient_accumulation_steps: 4\n" in captured.out


def test_a_row_that_does_not_fit_is_not_written_down(config, capsys):
    nothing_fits = [*QUESTION, "--memory", "400MB"]
    assert main(["plan", config, *nothing_fits]) == 1
    assert "Alone these lower the peak most" in capsys.readouterr().out
    assert main(["plan", config, *nothing_fits, "--emit", "train", "--row", "1"]) == 2
    assert "Row 1 alone does not fit: it needs " in capsys.readouterr().err


def test_each_row_says_what_it_can_be_written_as(config, capsys):
    main(["plan", config, *TOO_LARGE])
    rows = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\s+\d ", line)]
    assert rows
    for number, line in enumerate(rows, 1):
        (kind,) = re.findall("  (train|trl|own loop)  ", line)
        argv = ["plan", config, *TOO_LARGE, "--row", str(number), "--emit"]
        assert (main([*argv, "train"]) == 0) == (kind == "train")
        assert main([*argv, "trl"]) == 0 or kind != "trl"
        capsys.readouterr()


def test_another_version_of_the_code_computes_an_answer_anew(config, plan, monkeypatch, tmp_path):
    monkeypatch.setattr(course_utils, "__file__", str(tmp_path / "__init__.py"))
    for code in ("one = 1", "one = 1", "one = 2"):
        (tmp_path / "code.py").write_text(code)
        assert main(["plan", config, *FITTING, "--batch", "3"]) == 0
    assert plan.call_count == 2


@pytest.mark.parametrize("options", ["--search", "--machine H100", "--beside", "--sequence 100", "--loop own"])
def test_shipped_formulas_answer_unless_more_is_asked_for(options, plan, capsys):
    question = ["plan", "gpt2-small", "--memory", "8GB"]
    assert main(question) == 0
    assert "Answered from shipped formulas" in capsys.readouterr().out
    plan.assert_not_called()
    assert main([*question, *options.split()]) == 0
    assert "shipped formulas" not in capsys.readouterr().out
    plan.assert_called_once()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("llama-3.1-8b --memory RTX-3090 --search", "meta-llama/Llama-3.1-8B --memory rtx3090 --search"),
        ("gpt2-small --memory 8GB --machine H100", "gpt2-small --memory 8GB --machine h100"),
        ("gpt2-small --memory 8GB --teacher llama-3.1-8b", "gpt2-small --memory 8GB --teacher LLAMA-3.1-8b"),
    ],
)
def test_a_stored_answer_does_not_depend_on_how_its_model_and_card_are_spelled(first, second, plan):
    for question in (first, second):
        assert main(["plan", *question.split()]) == 0
    plan.assert_called_once()


@pytest.mark.usefixtures("plan")
def test_a_path_that_ends_like_a_model_name_is_not_that_model(capsys):
    assert main(["plan", "gpt2-small", "--memory", "8GB"]) == 0
    assert main(["plan", "./gpt2-small", "--memory", "8GB"]) == 2
    assert "No model is called './gpt2-small'" in capsys.readouterr().err


def test_what_does_not_fit_is_not_written_down(config, capsys):
    assert main(["plan", config, *TOO_LARGE, "--emit", "train"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(r"does not fit in 2\.00 GiB: it needs \S+ GiB to \S+ GiB\. Add --row N", captured.err)
    assert main(["plan", config, *FITTING, "--emit", "train"]) == 0


def test_a_mistyped_kind_is_told_before_a_plan_is_worked_out(config, capsys, monkeypatch):
    monkeypatch.setattr(planning, "plan", lambda *_, **__: pytest.fail("it was planned"))
    assert main(["plan", config, *TOO_LARGE, "--sequence", "1000", "--row", "1", "--emit", "trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


@pytest.mark.slow
def test_bytes_are_told_where_seconds_are_not_known(config, capsys):
    """A T4 has no rate for bfloat16, but what fits in its memory does not depend on that."""
    argv = ["plan", config, "--precision", "bf16", "--batch", "1"]
    main([*argv, "--memory", "16GB"])
    plain = capsys.readouterr().out.splitlines()
    assert main([*argv, "--memory", "T4"]) == 0
    (remark,) = [line for line in capsys.readouterr().out.splitlines() if line not in plain]
    assert remark.startswith("Seconds are not known: T4 has no rate for matrix products in bfloat16")


@pytest.mark.parametrize("adapters", [[], ["--lora", "8"]], ids=["all", "LoRA"])
def test_it_is_compared_with_this_machine(adapters, config, capsys, recwarn):
    assert main(["plan", config, "--measure", "--batch", "2", "--sequence", "32", *adapters]) == 0
    assert "predicted" in capsys.readouterr().out
    assert not [warning for warning in recwarn if warning.category is FutureWarning]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nobody-1b", "--memory", "8GB"], "No model is called 'nobody-1b'"),
        (["gpt2-small"], "How large is the card"),
        (["gpt2-small", "--ranks", "8", "--emit", "slurm", "--nodes", "3"], "do not divide among 3 nodes"),
        (["gpt2-small", "--emit", "slurm", "--nodes", "0"], "nodes must be a whole number"),
        (["gpt2-small", "--memory", "8GB", "--nodes", "2"], "add --emit slurm"),
        (["gpt2-small", "--memory", "8GB", "--emit", "trl", "--row", "0"], "and no row 0"),
        (["gpt2-small", "--memory", "80GB", "--emit", "trl", "--row", "1"], "The plan has 0 rows"),
        (["gpt2-small", "--memory", "8GB", "--row", "1"], "add --emit train"),
        (["gpt2-small", "--memory", "8GB", "--optimizer", "adam"], "No optimizer is called 'adam'"),
        (["own.py:build", "--emit", "train"], "call model.config.save_pretrained(FOLDER) and give FOLDER"),
        (["own.py:build", "--emit", "trl"], "write your own training loop"),
        (["nowhere.py:build", "--memory", "8GB"], "no file nowhere.py"),
        (["own.py:take", "--memory", "8GB"], "requires arguments (missing a required argument: 'width')"),
        (["lost.py:build", "--memory", "8GB"], "lost.py imports no_such_package, which is not installed here"),
        (["gpt2-small", "--why", "butch=3", ""], "A recipe has no field 'butch'"),
    ],
)
def test_a_question_without_an_answer_is_a_sentence_and_2(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def take(width):\n    return width\n")
    Path("lost.py").write_text("import no_such_package\n")
    assert main(["plan", *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_mistyped_file_is_a_file_where_its_like_is_there(config, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_bytes(Path(config).read_bytes())
    (tmp_path / "gpt2-smal.json").write_text("{}")
    assert main(["plan", "config.jsn", "--memory", "8GB"]) == 2
    assert "There is no file config.jsn; did you mean config.json?" in capsys.readouterr().err
    assert main(["plan", "gpt2-small", "--sequence", "16", "--why", "", "batch=1"]) == 0
