import torch

from course_utils.optim import Adam, AdamW, experiments


def test_decay_alone_is_what_the_closed_forms_say():
    """AdamW and SGD with L2 leave (1 - αλ)^steps at every scale; Adam with L2 follows the pencil."""
    scales, options = (0.01, 1.0, 100.0), {"lr": 0.01, "weight_decay": 0.1}
    expected = torch.full((3,), (1 - 0.001) ** 200, dtype=torch.float64)
    for kind in (AdamW, torch.optim.AdamW, torch.optim.SGD):
        left = experiments.left_after_noise(lambda p, kind=kind: kind(p, **options), scales, 200, pairs=50)
        torch.testing.assert_close(left, expected, rtol=0.02, atol=0)
    l2 = experiments.left_after_noise(lambda p: Adam(p, **options), scales, 200)
    torch.testing.assert_close(l2, experiments.predicted_left_l2(scales, 200, **options), rtol=0.02, atol=0.02)
    assert l2[0] < 0.05
    assert l2[2] > 0.99
