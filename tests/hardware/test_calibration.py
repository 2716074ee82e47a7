"""The calibration of this machine: its figures are possible, cached and in the right units."""

import math
import time
import warnings
from statistics import geometric_mean

import pytest
import torch

from course_utils import hardware
from course_utils.errors import CourseError
from course_utils.hardware import calibration
from course_utils.hardware.calibration import process_bandwidth
from course_utils.units import GiB, MiB


@pytest.fixture(scope="module")
def calibrated():
    before = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Other programs")  # as they may, while tests run beside each other
        machine = hardware.calibrate(["float32"], exchange=False)
    assert torch.equal(torch.random.get_rng_state(), before)
    return machine


def test_calibration_gives_figures_within_what_is_physically_possible(calibrated):
    assert 1e7 < calibrated.flop_rates["float32"] < 1e15
    assert 1e7 < calibrated.bandwidth < 1e14
    assert 1e6 < calibrated.host_link < 1e14
    assert 1e-8 < calibrated.seconds_per_operator < 1
    assert calibrated.memory > GiB / 2
    assert math.isnan(calibrated.link)
    rates = calibrated.rates
    curves = [*rates.products.values(), *rates.row_shares.values(), *rates.elements.values()]
    for curve in (*curves, rates.stream, rates.in_place, rates.new_memory):
        assert all(0 < rate < 1e15 for _, rate in curve.points)
        assert list(curve.points) == sorted(curve.points)
    assert calibrated.flop_rates["float32"] >= max(rate for _, rate in rates.products["mm NN", "float32"].points)


@pytest.fixture
def no_timing(monkeypatch):
    """A calibration in which every call takes a millisecond and no other program runs."""
    monkeypatch.setattr(calibration, "seconds_of", lambda call: 0.001)
    monkeypatch.setattr(calibration.psutil, "cpu_percent", lambda seconds: 0.0)


def test_calibration_is_kept_until_it_is_refreshed(calibrated, no_timing):
    assert hardware.calibrate(("float32",), exchange=False) is calibrated
    assert hardware.calibrate(("float32",), exchange=False, refresh=True) is not calibrated


def test_an_unknown_dtype_is_refused():
    for name in ("float7", "int64", "nn", "float8_e4m3fn"):
        with pytest.raises(CourseError, match=f"'{name}' is no floating type that torch multiplies"):
            hardware.calibrate([name])
    with pytest.raises(CourseError, match=r"write \['float32'\]"):
        hardware.calibrate("float32")


def test_what_a_first_call_loads_is_not_counted():
    pauses = iter([0.5])
    assert calibration.seconds_of(lambda: time.sleep(next(pauses, 0.0))) < 0.25


def test_a_busy_machine_is_warned_about(no_timing, monkeypatch):
    monkeypatch.setattr(calibration.psutil, "cpu_percent", lambda seconds: 80.0)
    with pytest.warns(UserWarning, match="Other programs use 80% of this machine's cores"):
        hardware.calibrate(["float64"], exchange=False, refresh=True)


def test_rates_are_in_bytes_and_flops_a_second(no_timing):
    machine = hardware.calibrate(["float64"], exchange=False, refresh=True)
    for curve in (machine.rates.stream, machine.rates.in_place, machine.rates.new_memory):
        assert curve.points == tuple((size, size / 0.001) for size, _ in curve.points)
    assert machine.host_link == 4 * 16 * MiB / 0.001
    sides = (96, 336, 1176)
    with_64, with_1024 = ([2 * rows * side**2 / 0.001 for side in sides] for rows in (64, 1024))
    assert machine.rates.products["mm NN", "float64"].points == tuple(zip(sides, with_1024, strict=True))
    share = geometric_mean(a / b for a, b in zip(with_64, with_1024, strict=True))
    assert machine.rates.row_shares["mm NN", "float64"].points == ((64, share), (1024, 1.0))


def test_two_processes_exchange_bytes():
    assert 1e6 < process_bandwidth() < 1e12


def test_an_exchange_that_does_not_finish_says_how_to_do_without():
    with pytest.raises(CourseError, match=r"not done after 0.01 s.*calibrate\(exchange=False\)"):
        process_bandwidth(timeout=0.01)
