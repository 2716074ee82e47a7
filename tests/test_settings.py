import dataclasses
import sys

import pytest
import torch

from course_utils.errors import CourseError
from course_utils.settings import SCALES, has_display, read_settings, settings


def test_without_variables_the_machine_decides():
    result = read_settings({})
    expected = "gpu" if torch.cuda.is_available() else "laptop"
    assert result.scale is SCALES[expected]
    assert result.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert result.home.is_absolute()
    assert not result.strict


def test_variables_are_taken(tmp_path):
    variables = {"COURSE_SCALE": "smoke", "COURSE_DEVICE": "cpu", "COURSE_SEED": "7", "COURSE_HOME": str(tmp_path)}
    result = read_settings(variables)
    assert read_settings({"COURSE_STRICT": "1"}).strict
    assert (result.scale.name, result.device.type, result.seed, result.home) == ("smoke", "cpu", 7, tmp_path)


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("COURSE_SCALE", "huge", "smoke, laptop, gpu"),
        ("COURSE_SCALE", "", "smoke, laptop, gpu"),
        ("COURSE_DEVICE", "tpu", "auto, cpu, cuda"),
        ("COURSE_DEVICE", "cuda:5", "auto, cpu, cuda"),
        ("COURSE_DEVICE", "cpu:", "auto, cpu, cuda"),
        ("COURSE_SEED", "-1", "whole number"),
        ("COURSE_SEED", "one", "whole number"),
        ("COURSE_SEED", "²", "whole number"),
        ("COURSE_STRICT", "yes", "0, 1"),
    ],
)
def test_a_bad_value_is_named_with_what_to_do(variable, value, advice):
    with pytest.raises(CourseError, match=advice) as error:
        read_settings({variable: value})
    assert variable in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the GPU that is asked for")
def test_a_gpu_that_is_not_there_is_said():
    with pytest.raises(CourseError, match="PyTorch sees none"):
        _ = read_settings({"COURSE_DEVICE": "cuda"}).device


def test_settings_are_read_once_and_frozen(monkeypatch):
    first = settings()
    monkeypatch.setenv("COURSE_SEED", "99")
    assert settings() is first
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.seed = 1


@pytest.mark.parametrize(("scale", "count"), [("smoke", (0,)), ("laptop", (0, 1, 2)), ("gpu", (0, 1, 2))])
def test_only_smoke_keeps_one(scale, count):
    items = range(3), (0, 1, 2), [0, 1, 2]
    assert [tuple(SCALES[scale].one_at_smoke(values)) for values in items] == [count] * 3


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "w"}, "linux", True),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "x"}, "darwin", False),
        ({}, "win32", True),
    ],
)
def test_where_a_browser_is_opened(environment, platform, expected, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("CI", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert has_display() is expected
