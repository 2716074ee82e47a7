"""Streams of gradients: what they hold, and what of an optimizer's state they count."""

import random

import torch
from sample_question import FIELDS

from course_utils.grading import streams
from course_utils.grading.kinds import stream


def test_a_slice_counts_with_all_the_memory_that_it_keeps():
    adafactor = stream(torch.optim.Adafactor, hyper={"lr": (0.1, 0.03)}, **FIELDS)
    cases = [case.inputs for case in adafactor.cases() if case.inputs["count_state"]]
    right, sliced = (
        streams.drive(optimizer, cases[0])["state"] for optimizer in (torch.optim.Adafactor, SlicedAdafactor)
    )
    assert sliced.pop(streams.MEMORY) > right.pop(streams.MEMORY)
    assert sliced == right


class SlicedAdafactor(torch.optim.Adafactor):
    """Keeps a row's or column's worth of numbers as a slice of a whole matrix."""

    def step(self):
        super().step()
        for p, state in self.state.items():
            for name in [name for name in ("row_var", "col_var") if name in state]:
                matrix = torch.zeros_like(p)
                part = matrix[..., :1] if name == "row_var" else matrix[..., :1, :]
                state[name] = part.copy_(state[name])


def test_the_stream_itself_holds_what_it_promises():
    for seed in range(5):
        cases = {case.name: case.inputs for case in streams.cases(random.Random(seed), streams.ADAM)}
        everything = cases["everything at once"]
        assert all(g["shift"] is None for g in everything["gradients"])
        assert any(g["weight"] is None for g in everything["gradients"])
        sizes = [g["weight"].abs().max() for g in everything["gradients"] if g["weight"] is not None]
        assert max(sizes) / min(size for size in sizes if size) > 1e6
        assert all(g[p] is None for g in cases["a step before any gradient"]["gradients"][:2] for p in g)
        first, second = (group["options"] for group in everything["groups"])
        assert all(first[name] != second[name] for name in streams.ADAM)
