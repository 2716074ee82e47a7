"""What people paste when memory ran out: messages as torch and rich have written them over the years."""

import pytest

from course_utils.memory.plan.explain import explain

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total {word} of 24.00 GiB of which "
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
    return NEW.format(asked=size, word=word, unused=unused)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            BACKWARD + OLD,
            ("requested 1.50 GiB, card 24.0 GiB, free 1.10 GiB", "unused 9.00 GiB", "backward", "expandable"),
        ),
        (
            BACKWARD + new(word="capacty", unused="10.00 GiB"),
            ("card 24.0 GiB", "unused 10.0 GiB", "expandable_segments"),
        ),
        (in_forward("softmax(weights, dtype=torch.float32).to(query.dtype)") + new(), ("in the forward pass",)),
        (in_forward("return self.weight * hidden.to(input_dtype)") + new(), ("in the forward pass",)),
        (RECOMPUTED + new(), ("in the backward pass",)),
        (new("20.00 MiB") + "\nretrying\n" + LOSS + new("4.00 GiB"), ("requested 4.00 GiB", "in the loss")),
        (in_forward("x.softmax(-1)") + "RuntimeError: CUDA error: out of memory", ("does not say how much", "forward")),
        (
            WRAPPED + OLD.replace("already ", "already\n"),
            ("card 24.0 GiB", "allocated 13.0 GiB", "in the forward pass"),
        ),
        (trace('File "m.py", line 3, in main', "  model.to(device)") + new(), ("moving or loading weights",)),
        (trace('File "torch/optim/adamw.py", line 3, in step') + new(), ("the optimizer's step",)),
    ],
    ids=[
        "torch 2.0",
        "capacty",
        "softmax",
        "norm",
        "recomputed",
        "two messages",
        "no amount",
        "rich",
        "loading",
        "update",
    ],
)
def test_the_last_message_is_read_with_its_moment(text, answer, tmp_path):
    (tmp_path / "log").write_text(text, encoding="utf-8")
    explanation = explain(tmp_path / "log")
    assert all(part in explanation for part in answer), explanation
