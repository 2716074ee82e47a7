"""`course plan`, as it is typed."""

import json
import subprocess
import sys

import pytest

from course_utils.cli import main

TINY = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 256,
}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def test_it_fits_or_it_does_not_and_the_exit_code_says_so(config, capsys):
    assert main(["plan", config, "--memory", "8GB"]) == 0
    assert "fits in 8.00 GiB" in capsys.readouterr().out
    assert main(["plan", config, "--memory", "400MiB", "--batch", "64", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "does not fit"
    assert found["recipe"]["batch"] == 64


def test_a_stored_answer_is_read_without_torch_or_transformers(config, tmp_path):
    words = [sys.executable, "-m", "course_utils.cli", "plan", config, "--memory", "8GB"]
    first = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100)
    spying = (
        "import sys; from course_utils.cli import main; code = main(sys.argv[1:]); "
        "print('imported:', [n for n in ('torch', 'transformers', 'pandas', 'numpy') if n in sys.modules]); sys.exit(code)"
    )
    again = subprocess.run([sys.executable, "-c", spying, *words[3:]], capture_output=True, text=True, check=True, timeout=30)
    assert again.stdout == first.stdout + "imported: []\n"


def test_another_file_of_the_same_name_is_another_question(config, capsys):
    main(["plan", config, "--memory", "8GB", "--json"])
    first = json.loads(capsys.readouterr().out)
    with open(config, "w") as file:
        json.dump({**TINY, "hidden_size": 128}, file)
    main(["plan", config, "--memory", "8GB", "--json"])
    assert json.loads(capsys.readouterr().out)["need"] > first["need"]


def test_a_module_of_ones_own(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "def build():\n    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100))\n"
    )
    assert main(["plan", f"{tmp_path}/mine.py:build", "--memory", "8GB"]) == 0
    assert "build: fits" in capsys.readouterr().out


def test_lengths_set_the_sequence(config, tmp_path, capsys):
    (tmp_path / "lengths.txt").write_text("10\n200\n30\n")
    main(["plan", config, "--memory", "8GB", "--data", str(tmp_path / "lengths.txt"), "--json"])
    assert json.loads(capsys.readouterr().out)["recipe"]["sequence"] == 200


def test_the_global_batch_is_kept(config, capsys):
    main(["plan", config, "--memory", "8GB", "--batch", "4", "--global-batch", "32", "--json"])
    assert json.loads(capsys.readouterr().out)["recipe"]["accumulation"] == 8
    assert main(["plan", config, "--memory", "8GB", "--batch", "5", "--global-batch", "32"]) == 2
    assert "does not divide" in capsys.readouterr().err


def test_why_emit_explain_and_beside(config, tmp_path, capsys):
    assert main(["plan", config, "--why", "batch=1", "batch=1,checkpointing"]) == 0
    assert "peak:" in capsys.readouterr().out
    assert main(["plan", config, "--emit", "trl", "--lora", "4"]) == 0
    assert "lora_r: 4" in capsys.readouterr().out
    (tmp_path / "oom").write_text("CUDA out of memory. Tried to allocate 20.00 MiB.")
    assert main(["plan", config, "--explain", str(tmp_path / "oom")]) == 0
    assert "asked 20.0 MiB" in capsys.readouterr().out
    assert main(["plan", config, "--memory", "8GB", "--beside"]) == 0
    assert "Beside training: evaluation" in capsys.readouterr().out


def test_the_settings_of_a_row(config, capsys):
    words = ["plan", config, "--memory", "500MiB", "--batch", "64", "--sequence", "256"]
    main([*words, "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert main([*words, "--emit", "accelerate", "--row", "1"]) == 0
    assert "mixed_precision" in capsys.readouterr().out
    assert main([*words, "--emit", "accelerate", "--row", str(len(rows) + 1)]) == 2


def test_it_is_held_against_this_machine(config, capsys):
    assert main(["plan", config, "--measure", "--batch", "2", "--sequence", "32"]) == 0
    assert "predicted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nobody-1b", "--memory", "8GB"], "No model is called 'nobody-1b'"),
        (["gpt2-small"], "How large is the card"),
        (["gpt2-small", "--memory", "much"], "is no size of memory"),
        (["gpt2-small", "--memory", "8GB", "--machine", "abacus"], "No card is called 'abacus'"),
        (["gpt2-small", "--memory", "8GB", "--optimizer", "adam"], "No optimizer is called 'adam'"),
        (["nowhere.py:build", "--memory", "8GB"], "no file nowhere.py"),
        (["gpt2-small", "--why", "", "butch=3"], "A recipe has no field 'butch'"),
    ],
)
def test_a_question_without_an_answer_is_a_sentence_and_2(words, said, capsys):
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err
