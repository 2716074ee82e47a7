"""Rings of cards, by closed forms."""

import pytest

from course_utils import hardware
from course_utils.hardware import LINKS, Cluster, Link, all_reduce_seconds

H100 = hardware.machine("H100")


def test_a_ring_between_machines_uses_the_network_cards_of_those_that_share_one():
    cluster = Cluster(H100, LINKS["NVLink 4"], LINKS["400 Gb/s"])
    assert cluster.ring(8, 1) == LINKS["NVLink 4"]
    assert cluster.ring(2, 4) == LINKS["NVLink 4"]
    assert cluster.ring(64, 1)[:2] == (8 * 50e9, 14e-6)
    assert cluster.ring(16, 4)[:2] == (2 * 50e9, 14e-6)
    assert cluster.ring(8, 8)[:2] == (50e9, 14e-6)
    assert Cluster(H100, LINKS["PCIe 4"], LINKS["400 Gb/s"]).ring(64, 1).bandwidth == 32e9


def test_an_all_reduce_passes_each_byte_twice_but_for_one_share_of_it():
    link = Link(bandwidth=100.0, latency=0.5, source="a test")
    assert all_reduce_seconds(4000, 4, link) == pytest.approx(2 * 3 * (1000 / 100 + 0.5))
    assert all_reduce_seconds(4000, 1, link) == 0
