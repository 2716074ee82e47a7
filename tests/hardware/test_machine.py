"""Seconds of work on a machine, by closed forms; the named machines, by relations that hold for all of them."""

import pytest

from course_utils import hardware
from course_utils.errors import CourseError
from course_utils.hardware import Curve, Machine, Rates, Work
from course_utils.units import GiB


def made_up(**changes) -> Machine:
    figures = {"memory": 8 * GiB, "bandwidth": 100.0, "flop_rates": {"float32": 1000.0, "bfloat16": 4000.0}}
    figures |= {"link": 10.0, "link_name": "string", "host_link": 5.0}
    return Machine("made up", "a test", **{**figures, **changes})


def test_seconds_are_the_slower_of_arithmetic_and_memory():
    machine = made_up()
    assert machine.seconds(Work("mm NN", flops=3000, bytes=100)) == 3.0
    assert machine.seconds(Work("mm NN", "bfloat16", flops=3000, bytes=100)) == 1.0
    assert machine.seconds(Work("add", bytes=250)) == 2.5
    assert machine.seconds(Work("view")) == 0.0


def test_a_call_costs_beside_the_work_unless_the_device_works_meanwhile():
    work = Work("add", bytes=250)
    assert made_up(seconds_per_operator=4.0).seconds(work) == 6.5
    assert made_up(seconds_per_operator=4.0, asynchronous=True).seconds(work) == 4.0
    assert made_up(seconds_per_operator=1.0, asynchronous=True).seconds(work) == 2.5


def test_measured_rates_come_before_the_general_ones():
    rates = Rates(
        products={("mm NT", "float32"): Curve(((10, 100.0), (1000, 10_000.0)))},
        elements={"gelu": Curve(((1, 10.0),))},
        stream=Curve(((1, 50.0),)),
        in_place=Curve(((1, 200.0),)),
        new_memory=Curve(((1, 20.0),)),
    )
    machine = made_up(rates=rates)
    assert machine.seconds(Work("mm NT", flops=3000, size=100)) == pytest.approx(3.0)
    assert machine.seconds(Work("mm NN", flops=3000, size=100)) == 3.0  # no measurement: the machine's rate
    assert machine.seconds(Work("gelu", elements=70, bytes=100)) == 7.0
    assert machine.seconds(Work("add", bytes=100)) == 0.5
    assert machine.seconds(Work("add", bytes=100, new_bytes=40)) == 100 / 50 + 40 / 20


def test_what_was_touched_long_ago_comes_from_memory():
    machine = made_up(rates=Rates(in_place=Curve(((100, 50.0), (10_000, 5.0)))))
    seconds = [machine.seconds(Work("add", bytes=100, reach=reach)) for reach in (0, 100, 10_000, 10**9)]
    assert seconds == pytest.approx([2, 2, 20, 20])


def test_a_product_with_few_rows_reaches_a_share_of_the_rate():
    kernel = "mm NT", "float32"
    rates = Rates({kernel: Curve(((10, 100.0),))}, {kernel: Curve(((64, 0.25), (1024, 1.0)))})
    machine = made_up(rates=rates)
    by_rows = {rows: machine.seconds(Work("mm NT", flops=100, rows=rows)) for rows in (8, 64, 1024, 9999)}
    assert by_rows == {8: 4.0, 64: 4.0, 1024: 1.0, 9999: 1.0}
    assert machine.seconds(Work("mm NT", flops=100, rows=256)) == pytest.approx(2.0)


def test_new_memory_is_paid_for_piece_by_piece():
    machine = made_up(rates=Rates(new_memory=Curve(((10, 100.0), (1000, 1.0))), stream=Curve(((1, 1e9),))))
    assert machine.seconds(Work("add", bytes=1, new_bytes=1000)) == pytest.approx(1000)
    assert machine.seconds(Work("_foreach_add", bytes=1, new_bytes=1000, new_tensors=100)) == pytest.approx(10)


def test_a_curve_is_straight_in_logarithms_and_flat_beyond_its_ends():
    curve = Curve(((1, 2.0), (100, 200.0), (10_000, 200.0)))
    assert [curve.rate_at(size) for size in (0.1, 1, 100, 20_000)] == pytest.approx([2.0, 2.0, 200.0, 200.0])
    assert curve.rate_at(10) == pytest.approx(20.0)
    assert curve.rate_at(5000) == pytest.approx(200.0)


def test_what_a_machine_cannot_do_is_said():
    with pytest.raises(
        CourseError, match="T4 has no rate for matrix products in bfloat16; choose one of float32, float16"
    ):
        hardware.machine("T4").seconds(Work("mm NN", "bfloat16", flops=1))
    with pytest.raises(CourseError, match="No machine is called 'T5'; choose one of RTX 3070, RTX 3080"):
        hardware.machine("T5")


@pytest.mark.parametrize("machine", hardware.MACHINES.values(), ids=lambda machine: machine.name)
def test_named_machines_are_consistent(machine):
    """Relations that hold for every accelerator; a slip in a unit or a sparse figure taken for a dense one breaks them."""
    assert machine.source.startswith("https://")
    assert machine.host_link <= machine.link < machine.bandwidth
    assert (
        machine.flop_rates["float32"]
        <= machine.flop_rates.get("tf32", machine.flop_rates["float32"])
        < machine.flop_rates["float16"]
    )
    assert machine.flop_rates["float16"] == machine.flop_rates.get("bfloat16", machine.flop_rates["float16"])
    # The FLOPs that one byte must be worth differ little between them in half precision, least on the narrow RTX 3060.
    assert (70 if machine.name == "RTX 3060" else 75) < machine.flop_rates["float16"] / machine.bandwidth < 450
