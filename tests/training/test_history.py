"""What a history counts, against counts by hand."""

import pytest

from course_utils import training


def test_the_history_counts_tokens_time_and_operations(model_and_optimizer, batches):
    model, optimizer = model_and_optimizer()
    frame = training.train(model, optimizer, batches, progress=False).frame()
    assert list(frame.index) == [1, 2, 3, 4, 5]
    assert frame["tokens"].tolist() == [128, 128, 128, 128, 80]
    assert frame["seconds"].is_monotonic_increasing
    assert frame["tokens_per_second"].iloc[1] == pytest.approx(128 / frame["seconds"].diff().iloc[1])
    assert set(frame["epoch"]) == {1}
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name)
    head = model.pre_classifier.weight.numel() + model.classifier.weight.numel()
    layers, width, heads = model.config.n_layers, model.config.dim, model.config.n_heads
    # Forward 2 operations a weight and token, backward twice that; the head sees one token a row; the first layer's
    # input needs a gradient too, since embeddings are trained. Attention multiplies s x s by the head width twice.
    dense = 6 * ((matrices - head) * 128 + head * 8)
    attention = 4 * 8 * heads * 16 * 16 * (width // heads) * layers
    assert dense < frame["flops"].iloc[0] <= dense + 4 * attention
    assert frame["flops"].iloc[-1] == pytest.approx(frame["flops"].iloc[0] * 5 / 8)


def test_tokens_per_second_leave_out_steps_that_warm_up():
    history = training.History(steps=[{"tokens": 10, "seconds": s} for s in (5.0, 6.0, 8.0)])
    assert history.tokens_per_second() == pytest.approx(20 / 3)
    assert history.tokens_per_second(skip=0) == pytest.approx(30 / 8)
