"""Links between cards and between servers, with the sources of their figures, and clusters of servers."""

from typing import NamedTuple

from course_utils.distributed import communication
from course_utils.hardware.machine import Machine
from course_utils.hardware.named import machine


class Link(NamedTuple):
    """A card's link in one direction: bytes a second, seconds that each message of a ring takes in addition, and sources."""

    bandwidth: float
    latency: float
    source: str


_NCCL = "NVIDIA/nccl, src/graph/tuning.cc: `hwLat` of a ring, protocol Simple, for NVLink, PCI or a network"
A100 = machine("A100-80GB")
H100 = machine("H100")
LINKS = {
    "NVLink 4": Link(H100.link, 3.4e-6, f"{H100.source}; {_NCCL}"),
    "NVLink 3": Link(A100.link, 3.4e-6, f"{A100.source}; {_NCCL}"),
    "PCIe 5": Link(H100.host_link, 5.7e-6, f"{H100.source}; {_NCCL}"),
    "PCIe 4": Link(A100.host_link, 5.7e-6, f"{A100.source}; {_NCCL}"),
    "400 Gb/s": Link(50e9, 14e-6, f"InfiniBand NDR, or Ethernet; {_NCCL}"),
    "200 Gb/s": Link(25e9, 14e-6, f"InfiniBand HDR, or Ethernet; {_NCCL}"),
    "100 Gb/s": Link(12.5e9, 14e-6, f"Ethernet; {_NCCL}"),
    "10 Gb/s": Link(1.25e9, 20e-6, "Ethernet over TCP; Hurwitz & Feng 2003, Initial End-to-End Performance Evaluation"),
}
"""Rates by the makers, which no measurement exceeds, and the latencies by which NCCL chooses its algorithm."""


def all_reduce_seconds(size: float, ranks: int, link: Link) -> float:
    """Seconds of an all-reduce of `size` bytes on a ring of `ranks`, without overlap with computation; 0 on one rank."""
    if ranks == 1:
        return 0.0
    return communication("ddp", max(1, round(size)), ranks, gradient_bytes=1).seconds(link.bandwidth, link.latency)


class Cluster(NamedTuple):
    """Servers with `cards` equal cards each, and the links inside and between them; each card has its own network card."""

    card: Machine
    intra_node: Link
    inter_node: Link
    cards: int = 8

    def ring(self, ranks: int, stride: int) -> Link:
        """The link of a ring of `ranks` cards with a distance of `stride`. Each round waits for the slowest message.

        Between servers, the ring's cards on one server all send at once, each through its own network card, as several rings.
        """
        if ranks * stride <= self.cards:
            return self.intra_node
        bandwidth = max(1, self.cards // stride) * self.inter_node.bandwidth
        return self.inter_node._replace(bandwidth=min(self.intra_node.bandwidth, bandwidth))
