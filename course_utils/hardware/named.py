"""Accelerators by name, from their makers' data sheets."""

from course_utils.errors import CourseError, instead
from course_utils.hardware.machine import Machine
from course_utils.units import GiB

_GB, _TERA = 1e9, 1e12


def _nvidia_datacenter(page: str) -> str:
    return f"https://www.nvidia.com/en-us/data-center/{page}/"


def _device(name, source, gibibytes, gb_per_second, teraflops, link, link_name, host_link) -> Machine:
    flops = {dtype: rate * _TERA for dtype, rate in teraflops.items()}
    memory = gibibytes * GiB
    return Machine(name, source, memory, gb_per_second * _GB, flops, link * _GB, link_name, host_link * _GB)


def _tensor_cores(fp32: float, tf32: float, half: float) -> dict[str, float]:
    return {"float32": fp32, "tf32": tf32, "bfloat16": half, "float16": half}


# Figures are dense: data sheets that print sparse ones (L4, H100, H200) say twice as much. Links are for one direction,
# half of the bidirectional figure that is usually printed. Tensor cores accumulate in fp32, as PyTorch uses them; on the
# GeForce cards that is half of what they do in fp16.
# Memory is the nominal size; data sheets write GB for GiB.
MACHINES = {
    machine.name: machine
    for machine in (
        _device("T4", _nvidia_datacenter("tesla-t4"), 16, 320, {"float32": 8.1, "float16": 65}, 16, "PCIe 3 x16", 16),
        _device("L4", _nvidia_datacenter("l4"), 24, 300, _tensor_cores(30.3, 60, 121), 32, "PCIe 4 x16", 32),
        _device("A100-40GB", _nvidia_datacenter("a100"), 40, 1555, _tensor_cores(19.5, 156, 312), 300, "NVLink 3 (SXM4)", 32),
        _device("A100-80GB", _nvidia_datacenter("a100"), 80, 2039, _tensor_cores(19.5, 156, 312), 300, "NVLink 3 (SXM4)", 32),
        _device("H100", _nvidia_datacenter("h100"), 80, 3350, _tensor_cores(67, 494.5, 989.5), 450, "NVLink 4 (SXM5)", 64),
        _device("H200", _nvidia_datacenter("h200"), 141, 4800, _tensor_cores(67, 494.5, 989.5), 450, "NVLink 4 (SXM5)", 64),
        _device(
            "RTX 3090", "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
            24, 936, _tensor_cores(35.6, 35.6, 71), 56.25, "NVLink 3 (bridge)", 32,
        ),
        _device(
            "RTX 4090", "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
            24, 1008, _tensor_cores(82.6, 82.6, 165.2), 32, "PCIe 4 x16", 32,
        ),
        _device(
            "MI300X", "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
            192, 5300, _tensor_cores(163.4, 653.7, 1307.4), 64, "Infinity Fabric (OAM), each of 7 links", 64,
        ),
    )
}  # fmt: skip
OFFERED = 0.92
"""The least part of a card's nominal memory that CUDA offers: the driver and error correction keep 1 to 8 %."""


def known_as(name: str) -> str:
    """What a machine is called here that is written in other capitals or without its blank; any other name as it is."""
    return {_bare(known): known for known in MACHINES}.get(_bare(name), name)


def _bare(name: str) -> str:
    return name.replace(" ", "").replace("-", "").lower()


def machine(name: str) -> Machine:
    """The machine of that name, one of `MACHINES`; raises `CourseError` for another.

    Its rates are what the maker promises: no operator that takes its bytes from memory is faster. (One that does the work of
    several is: a fused AdamW moves 32 bytes a float32 parameter, the operators counted by default 80.) What can be had of
    them is for `calibrate()` to measure.
    """
    name = known_as(name)
    if name not in MACHINES:
        known = f"choose one of {', '.join(MACHINES)}, or calibrate() this one."
        raise CourseError(f"No machine is called {name!r}; {instead(name, MACHINES, known)}")
    return MACHINES[name]
