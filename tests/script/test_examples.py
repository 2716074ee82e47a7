"""Rows of a text: cut from one stream, or packed so that no document sees another."""

import re
from pathlib import Path

import pytest
import torch
from small_job import run_job, write_small_model
from transformers import AutoConfig, AutoModelForCausalLM

from course_utils.errors import CourseError
from course_utils.script import Job
from course_utils.script.examples import PACKABLE_FAMILIES, Order, load_examples
from course_utils.techniques.chunked_loss import IGNORED

TINY = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TINY |= {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "num_layers": 2}
FAMILY_FIELDS = {"gptj": {"rotary_dim": 8}, "gpt_neo": {"attention_types": [[["global"], 2]]}}


@pytest.mark.parametrize("family", PACKABLE_FAMILIES)
def test_documents_of_one_row_do_not_see_each_other(family):
    """With positions that begin anew each has the logits that it has alone."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**TINY, **FAMILY_FIELDS.get(family, {})})
    model = AutoModelForCausalLM.from_config(config).eval()
    first, second = torch.randint(1, 64, (1, 5)), torch.randint(1, 64, (1, 7))
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    with torch.no_grad():
        packed = model(input_ids=torch.cat([first, second], 1), position_ids=positions, use_cache=False).logits
        separate = torch.cat([model(input_ids=ids, use_cache=False).logits for ids in (first, second)], 1)
    torch.testing.assert_close(packed, separate, rtol=1e-4, atol=1e-5)


def test_other_families_are_refused(tmp_path):
    config = AutoConfig.for_model("opt", vocab_size=259, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    (tmp_path / "config.json").write_text(config.to_json_string(), encoding="utf-8")
    (tmp_path / "text").mkdir()
    fields = write_small_model(tmp_path / "text")
    with pytest.raises(CourseError, match="Documents in one row of opt see each other"):
        load_examples(Job(**{**fields, "model": str(tmp_path / "config.json")}, packed=True, out=tmp_path))


def examples_of(tmp_path, text, **changes):
    fields = write_small_model(tmp_path)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return load_examples(Job(**{**fields, **changes}, out=tmp_path))[1]


def test_a_stream_is_the_text_in_bytes(tmp_path):
    examples = examples_of(tmp_path, "first\n\nsecond, longer", sequence=4, batch=1)
    assert bytes(examples.columns["input_ids"].flatten().tolist()) == b"first\nsecond, longer\n"[:20]
    assert examples.weights.tolist() == 5 * [3]


def test_packed_rows_hold_every_token_once_and_no_label_crosses_a_border(tmp_path):
    examples = examples_of(tmp_path, "abc\n\ndefgh\n\nij\n\n" + "k" * 9, sequence=8, batch=1, packed=True)
    ids, labels, positions = (examples.columns[name] for name in ("input_ids", "labels", "position_ids"))
    real = labels != IGNORED
    assert torch.equal(ids[real], labels[real])
    assert not (real & (positions == 0)).any()
    assert examples.weights.tolist() == real.sum(1).tolist()
    # Documents have 4, 6, 3 and 10 bytes, the last cut into 8 and 2: one label less than tokens for each piece.
    assert int(examples.tokens.sum()) == 23
    assert int(real.sum()) == 23 - 5


def test_every_epoch_has_every_batch_in_an_order_of_its_own():
    order = Order(10, 3, seed=0)
    epochs = [[row for step in range(3) for row in order[3 * epoch + step]] for epoch in range(2)]
    assert all(len(set(rows)) == 9 for rows in epochs)
    assert epochs[0] != epochs[1]
    assert Order(10, 3, seed=0)[4] == order[4]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("empty.txt", b"", "There is no text in"),
        ("latin.txt", "Müller".encode("latin-1"), "is not UTF-8 text"),
        ("odd.jsonl", b'{"words": 1}', "has a line that is no JSON object with a text"),
        ("number.jsonl", b'{"text": 3}', "has a line that is no JSON object with a text"),
        ("half.jsonl", b'{"text": ', "has a line that is no JSON object with a text"),
    ],
)
def test_what_is_no_text_is_said(tmp_path, name, content, sentence):
    fields = write_small_model(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CourseError, match=sentence):
        load_examples(Job(**{**fields, "data": tmp_path / name}, out=tmp_path))


def test_training_begins_from_the_weights_that_are_named(tmp_path):
    """The loss of the first update is that of the trained model on the same batch, and not that of a fresh one."""
    fields = write_small_model(tmp_path)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(fields["model"], attention_dropout=0.0))
    with torch.no_grad():  # surely not what a fresh model says
        model.lm_head.weight.mul_(20)
    model.save_pretrained(tmp_path / "trained")
    job = {**fields, "model": str(tmp_path / "trained"), "steps": 1, "tokenizer": "bytes", "quick": True}
    _, examples = load_examples(Job(**job, out=tmp_path))
    batch = examples[Order(len(examples), 12, seed=0)[0]]
    with torch.no_grad():
        expected = model(**batch).loss.item()
    _, random_losses, _ = run_job({**job, "out": tmp_path / "fresh"})
    _, losses, _ = run_job({**job, "weights": str(tmp_path / "trained"), "out": tmp_path / "on"})
    assert losses[1] == pytest.approx(expected, rel=1e-5)
    assert abs(random_losses[1] - expected) > 0.1


def test_who_named_no_tokenizer_is_told_that_tokens_are_bytes(tmp_path):
    fields = write_small_model(tmp_path, steps=1, quick=True)
    _, losses, lines = run_job({**fields, "tokenizer": "", "out": tmp_path / "unnamed"})
    assert lines[0] == "Tokens are bytes; --tokenizer names a tokenizer, and --weights brings its own."
    _, named_losses, silent = run_job({**fields, "out": tmp_path / "named"})
    assert losses == named_losses
    assert len(lines) == 1 + len(silent)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_trained_weights_without_their_tokenizer_are_refused(tmp_path, family):
    """Transformers reads a folder without one as an empty tokenizer, to which all texts are the same."""
    fields = write_small_model(tmp_path)
    folder = tmp_path / "trained"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    configuration = AutoConfig.for_model(family, vocab_size=256, num_key_value_heads=2, **sizes)
    AutoModelForCausalLM.from_config(configuration).save_pretrained(folder)
    job = {**fields, "model": str(folder), "weights": str(folder), "tokenizer": "", "out": tmp_path}
    with pytest.raises(CourseError, match="no tokenizer.*bytes"):
        load_examples(Job(**job))
    assert len(load_examples(Job(**{**job, "tokenizer": "bytes"}))[1])


def test_the_trained_model_is_had_as_the_document_says(tmp_path, monkeypatch):
    state, _, _ = run_job(write_small_model(tmp_path, steps=1, quick=True, out=tmp_path / "runs" / "mine"))
    document = (Path(__file__).parents[2] / "docs" / "train.md").read_text(encoding="utf-8")
    (code,) = re.findall("```python\n(.*?)```", document, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "train.md", "exec"), {})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "mine").state_dict()
    assert all(torch.equal(loaded[name], expected) for name, expected in state.items())


def test_adapters_on_random_weights_are_said_to_be_that(tmp_path):
    fields = write_small_model(tmp_path, steps=1, quick=True, lora=2)
    _, _, lines = run_job({**fields, "out": tmp_path / "run"})
    assert any("random weights" in line and "--weights" in line for line in lines)
    with pytest.raises(CourseError, match="--weights, .* are for language models; add --model and --data"):
        Job(out=tmp_path, weights="gpt2")
