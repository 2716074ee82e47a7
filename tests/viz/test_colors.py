from itertools import combinations

import numpy as np
import pytest

from course_utils.memory.usage import KINDS
from course_utils.viz.style import COLORS

# Machado, Oliveira & Fernandes (2009), severity 1: what readers without one kind of cone see, in linear RGB.
SEEN_BY = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB, white D65."""
    xyz = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("reader", SEEN_BY)
@pytest.mark.parametrize("kinds", [KINDS, (*KINDS[:-2], "temporaries")], ids=["measured", "predicted"])
def test_kinds_that_stand_together_are_told_apart(reader, kinds):
    seen = {kind: lab(SEEN_BY[reader] @ linear(COLORS[kind])) for kind in kinds}
    for one, other in combinations(kinds, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 15, (one, other)


def test_what_the_phases_add_is_told_from_its_neighbors_in_grey():
    lightness = {kind: lab(linear(COLORS[kind]))[0] for kind in KINDS}
    for one, other in (
        ("parameters", "buffers"),
        ("parameters", "optimizer state"),
        ("optimizer state", "gradients"),
        ("activations", "recomputed"),
        ("recomputed", "backward temporaries"),
        ("activations", "backward temporaries"),
        ("gradients", "optimizer temporaries"),
    ):
        assert abs(lightness[one] - lightness[other]) > 8, (one, other)
