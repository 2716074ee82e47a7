"""Accuracy and F1 against counts by hand."""

import numpy as np
import pytest
import torch

from course_utils import data
from course_utils.errors import CourseError


def test_two_classes_by_hand():
    # Of class 1: 2 found rightly, 1 wrongly, 2 missed; precision 2/3, recall 1/2, F1 4/7.
    scores = data.metrics([1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0])
    assert scores == {"accuracy": 0.5, "f1": pytest.approx(4 / 7)}


def test_three_classes_by_hand():
    # F1 of classes 0, 1, 2: 2*1/(2*1+0+1) = 2/3, 2*1/(2*1+1+0) = 2/3, 1.
    scores = data.metrics([0, 0, 1, 2], [0, 1, 1, 2])
    assert scores == {"accuracy": 0.75, "f1": pytest.approx(7 / 9)}


def test_a_few_rows_of_many_classes_are_told_apart_from_two_classes():
    assert data.metrics([0, 1, 1], [0, 0, 1], classes=10)["f1"] == pytest.approx(2 / 3)
    assert data.metrics([0, 0, 1], [0, 0, 0], classes=2)["f1"] == 0.0


def test_arrays_and_tensors_are_taken():
    for kind in (np.array, torch.tensor):
        assert data.metrics(kind([0, 1]), kind([0, 1])) == {"accuracy": 1.0, "f1": 1.0}


@pytest.mark.parametrize(("labels", "predictions"), [([], []), ([1], [1, 0])])
def test_lengths_must_agree(labels, predictions):
    with pytest.raises(CourseError, match="give one prediction for each label"):
        data.metrics(labels, predictions)
