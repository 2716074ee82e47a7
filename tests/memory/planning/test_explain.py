"""Explanations of why memory did not fall, and of messages that torch and rich have written when it ran out."""

import pickle
from dataclasses import replace

import pytest
from llamas import LLAMA, RECIPE

from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate
from course_utils.memory.planning.explain import explain, explain_change
from course_utils.units import MiB

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total {word} of 24.00 GiB of which "
    "1.00 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and {unused} is reserved by PyTorch but "
    "unallocated."
)
OLD = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 24.00 GiB total capacity; 13.00 GiB "
    "already allocated; 1.10 GiB free; 22.00 GiB reserved in total by PyTorch)"
)


def trace(*lines):
    return "\n".join(["Traceback (most recent call last):", *(f"  {line}" for line in lines), ""])


def in_forward(code):
    return trace(
        'File "a/trainer.py", line 10, in training_step', 'File "a/modeling.py", line 20, in forward', f"  {code}"
    )


BACKWARD = trace(
    'File "train.py", line 9, in main', "  loss.backward()", 'File "torch/autograd/graph.py", line 8, in _engine'
)
RECOMPUTED = (
    BACKWARD + '  File "torch/utils/checkpoint.py", in unpack_hook\n  File "a/modeling.py", line 5, in forward\n'
)
LOSS = trace('File "a/modeling.py", line 9, in forward', 'File "a/loss.py", line 36, in fixed_cross_entropy')
WRAPPED = "│ ❱ 629 │ probs = scores.softmax(dim=-1) │\n│   632 │ probs = probs.to(value.dtype) │\n"


def new(size="64.00 MiB", word="capacity", unused="100.00 MiB"):
    return NEW.format(size=size, word=word, unused=unused)


CASES = {
    "torch 2.0": (
        BACKWARD + OLD,
        ["requested 1.50 GiB, card 24.0 GiB, free 1.10 GiB", "unused 9.00 GiB", "backward", "expandable"],
    ),
    "capacty": (
        BACKWARD + new(word="capacty", unused="10.00 GiB"),
        ["card 24.0 GiB", "unused 10.0 GiB", "expandable_segments"],
    ),
    "softmax": (in_forward("softmax(weights, dtype=torch.float32).to(query.dtype)") + new(), ["in the forward pass"]),
    "norm": (in_forward("return self.weight * hidden.to(input_dtype)") + new(), ["in the forward pass"]),
    "recomputed": (RECOMPUTED + new(), ["in the backward pass"]),
    "two messages": (new("20.00 MiB") + "\nretrying\n" + LOSS + new("4.00 GiB"), ["requested 4.00 GiB", "in the loss"]),
    "no amount": (
        in_forward("x.softmax(-1)") + "RuntimeError: CUDA error: out of memory",
        ["does not say how much", "forward"],
    ),
    "rich": (
        WRAPPED + OLD.replace("already ", "already\n"),
        ["card 24.0 GiB", "allocated 13.0 GiB", "in the forward pass"],
    ),
    "loading": (trace('File "m.py", line 3, in main', "  model.to(device)") + new(), ["moving or loading weights"]),
    "update": (trace('File "torch/optim/adamw.py", line 3, in step') + new(), ["the optimizer's step"]),
}


@pytest.mark.parametrize(("text", "parts"), CASES.values(), ids=CASES)
def test_the_last_message_is_read_with_its_moment(text, parts, tmp_path):
    (tmp_path / "log").write_text(text, encoding="utf-8")
    explanation = explain(tmp_path / "log")
    assert all(part in explanation for part in parts), explanation


def test_why_memory_did_not_fall_names_the_instant_that_binds():
    small = Recipe("adamw-foreach", batch=1, sequence=32, device="cuda")
    text = explain_change(estimate(LLAMA, small), estimate(LLAMA, replace(small, checkpointing=True)))
    assert "The peak did not fall, because it is in update" in text
    large = replace(small, batch=32, sequence=512)
    text = explain_change(estimate(LLAMA, large), estimate(LLAMA, replace(large, checkpointing=True)))
    assert "did not fall" not in text
    assert "activations:" in text


MESSAGE = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss = model(**batch).loss
  File "lib/transformers/loss/loss_utils.py", line 36, in ForCausalLMLoss
    loss = fixed_cross_entropy(logits, labels)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size:.2f} MiB. GPU 0 has a total capacity of 1.00 GiB \
of which 4.10 MiB is free. Of the allocated memory 700.00 MiB is allocated by PyTorch, \
and 200.00 MiB is reserved by PyTorch but unallocated.
"""


def test_an_error_message_is_found_in_the_step(tmp_path):
    predicted = estimate(LLAMA, RECIPE)
    logits = 4 * 2048 * 8000 * 4
    (tmp_path / "oom.txt").write_text(MESSAGE.format(size=logits / MiB))
    text = explain(tmp_path / "oom.txt", predicted)
    assert "It happened in the loss" in text
    assert "A tensor of that size is allocated in forward" in text
    assert "expandable_segments" in text
    assert f"peak is in {predicted.peak_instant.name}" in text


def test_a_snapshot_is_summed_by_the_line_that_asked(tmp_path):
    frames = [
        {"filename": "x/torch/nn.py", "line": 1, "name": "f"},
        {"filename": "me.py", "line": 7, "name": "forward"},
    ]
    block = {"state": "active_allocated", "size": 300, "frames": frames}
    blocks = [block, {**block, "size": 100}, {"state": "inactive", "size": 600}]
    snapshot = {"segments": [{"total_size": 1000, "blocks": blocks}]}
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    text = explain(tmp_path / "snapshot.pickle")
    assert "allocated 400 B, reserved 1000 B" in text
    assert "400 B  me.py:7 forward" in text


class Harmful:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"all is well", "holds no CUDA out-of-memory message"),
        (pickle.dumps(Harmful()), "asks for builtins.print"),
        (pickle.dumps([1]), "is no memory snapshot"),
    ],
)
def test_a_file_that_says_nothing_is_a_sentence_and_runs_nothing(content, message, tmp_path, capsys):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CourseError, match=message):
        explain(tmp_path / "file")
    assert capsys.readouterr().out == ""
    with pytest.raises(CourseError, match="There is no file"):
        explain(tmp_path / "another")
