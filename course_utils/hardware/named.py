"""Accelerators by name, from their makers' data sheets."""

from course_utils.errors import CourseError, suggest
from course_utils.hardware.machine import Machine
from course_utils.units import GiB

_GB, _TERA = 1e9, 1e12
_AMPERE = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"


def _nvidia(page: str) -> str:
    return f"https://www.nvidia.com/en-us/{page}/"


def _amd(series: str, card: str) -> str:
    return f"https://www.amd.com/en/products/accelerators/instinct/{series}/{card}.html"


def _card(
    name: str,
    source: str,
    gibibytes: int,
    gb_per_second: float,
    teraflops: dict[str, float],
    link: float,
    link_name: str,
    host_link: float,
) -> Machine:
    flops = {dtype: rate * _TERA for dtype, rate in teraflops.items()}
    memory = gibibytes * GiB
    return Machine(name, source, memory, gb_per_second * _GB, flops, link * _GB, link_name, host_link * _GB)


def _on_pcie(
    name: str, source: str, gibibytes: int, gb_per_second: float, teraflops: dict[str, float], generation: int
) -> Machine:
    """A card whose only link is that to the host, 16 lanes of 1 GB/s in generation 3 and of twice as much in each later one."""
    link = 16 * 2 ** (generation - 3)
    return _card(name, source, gibibytes, gb_per_second, teraflops, link, f"PCIe {generation} x16", link)


def _tensor_cores(fp32: float, tf32: float, half: float) -> dict[str, float]:
    return {"float32": fp32, "tf32": tf32, "bfloat16": half, "float16": half}


def _geforce(fp32: float) -> dict[str, float]:
    return _tensor_cores(fp32, fp32, 2 * fp32)


# Figures are dense: data sheets that print sparse ones (L4, H100, H200) say twice as much. Links are for one direction,
# half of the bidirectional figure that is usually printed. Tensor cores accumulate in fp32, as PyTorch uses them; on the
# GeForce cards that is half of what they do in fp16.
# Memory is the nominal size; data sheets write GB for GiB.
# Columns: name, source, GiB, GB/s, TFLOP/s, then of the link GB/s and name, and GB/s of the link to the host.
MACHINES = {
    machine.name: machine
    for machine in (
        _on_pcie("RTX 3070", _AMPERE, 8, 448, _geforce(20.3), 4),
        _on_pcie("RTX 3080", _AMPERE, 10, 760, _geforce(29.8), 4),
        _on_pcie("RTX 3060", _nvidia("geforce/graphics-cards/30-series/rtx-3060-3060ti"), 12, 360, _geforce(12.7), 4),
        _on_pcie("RTX 4070", _nvidia("geforce/graphics-cards/40-series/rtx-4070-family"), 12, 504, _geforce(29.1), 4),
        _on_pcie("RTX 5070", _BLACKWELL, 12, 672, _geforce(30.9), 5),
        _on_pcie("T4", _nvidia("data-center/tesla-t4"), 16, 320, {"float32": 8.1, "float16": 65}, 3),
        _card("V100-16GB", _nvidia("data-center/v100"), 16, 900, {"float32": 15.7, "float16": 125}, 150, "NVLink 2 (SXM2)", 16),
        _on_pcie("RTX 4080", _ADA, 16, 717, _geforce(48.7), 4),
        _on_pcie("RTX 5070 Ti", _BLACKWELL, 16, 896, _geforce(43.9), 5),
        _on_pcie("RTX 5080", _BLACKWELL, 16, 960, _geforce(56.3), 5),
        _on_pcie("A10", _nvidia("data-center/products/a10-gpu"), 24, 600, _tensor_cores(31.2, 62.5, 125), 4),
        _on_pcie("A10G", "https://aws.amazon.com/ec2/instance-types/g5/", 24, 600, _tensor_cores(35, 35, 70), 4),
        _card(
            "A30", _nvidia("data-center/products/a30-gpu"), 24, 933, _tensor_cores(10.3, 82, 165), 100, "NVLink 3 (bridge)", 32,
        ),
        _on_pcie("L4", _nvidia("data-center/l4"), 24, 300, _tensor_cores(30.3, 60, 121), 4),
        _card("RTX 3090", _AMPERE, 24, 936, _geforce(35.6), 56.25, "NVLink 3 (bridge)", 32),
        _on_pcie("RTX 4090", _ADA, 24, 1008, _geforce(82.6), 4),
        _card("V100-32GB", _nvidia("data-center/v100"), 32, 900, {"float32": 15.7, "float16": 125}, 150, "NVLink 2 (SXM2)", 16),
        _on_pcie("RTX 5090", _BLACKWELL, 32, 1792, _geforce(104.8), 5),
        _card("A100-40GB", _nvidia("data-center/a100"), 40, 1555, _tensor_cores(19.5, 156, 312), 300, "NVLink 3 (SXM4)", 32),
        _card("A40", _nvidia("data-center/a40"), 48, 696, _tensor_cores(37.4, 74.8, 149.7), 56.25, "NVLink 3 (bridge)", 32),
        _card(
            "A6000", _nvidia("products/workstations/rtx-a6000"), 48, 768, _tensor_cores(38.7, 77.4, 154.8), 56.25,
            "NVLink 3 (bridge)", 32,
        ),
        _on_pcie("L40S", _nvidia("data-center/l40s"), 48, 864, _tensor_cores(91.6, 183, 362), 4),
        _on_pcie("RTX 6000 Ada", _nvidia("products/workstations/rtx-6000"), 48, 960, _tensor_cores(91.1, 182.1, 364.2), 4),
        _card("A100-80GB", _nvidia("data-center/a100"), 80, 2039, _tensor_cores(19.5, 156, 312), 300, "NVLink 3 (SXM4)", 32),
        _card("H100", _nvidia("data-center/h100"), 80, 3350, _tensor_cores(67, 494.5, 989.5), 450, "NVLink 4 (SXM5)", 64),
        _card("H200", _nvidia("data-center/h200"), 141, 4800, _tensor_cores(67, 494.5, 989.5), 450, "NVLink 4 (SXM5)", 64),
        _card("B200", _nvidia("data-center/hgx"), 180, 8000, _tensor_cores(80, 1100, 2250), 900, "NVLink 5 (SXM6)", 64),
        _card(
            "MI300X", _amd("mi300", "mi300x"), 192, 5300, _tensor_cores(163.4, 653.7, 1307.4), 64,
            "Infinity Fabric (OAM), each of 7 links", 64,
        ),
        _card(
            "MI325X", _amd("mi300", "mi325x"), 256, 6000, _tensor_cores(163.4, 653.7, 1307.4), 64,
            "Infinity Fabric (OAM), each of 7 links", 64,
        ),
    )
}  # fmt: skip
"""The machines by name, those with the least memory first."""
OFFERED_SHARE = 0.92
"""The least share of a card's nominal memory that CUDA offers, since the driver and error correction keep 1 to 8 %."""


def canonical_name(name: str) -> str:
    """The name in `MACHINES` that equals `name` up to capitals, spaces and hyphens, or else `name` itself."""
    return {_simplify(machine): machine for machine in MACHINES}.get(_simplify(name), name)


def _simplify(name: str) -> str:
    return name.replace(" ", "").replace("-", "").lower()


def machine(name: str) -> Machine:
    """The machine of that name, one of `MACHINES`; raises `CourseError` for another.

    Its rates are the maker's, which no operator on bytes from memory exceeds; `calibrate()` measures how much of them a step
    gets. An operator that does the work of several may be faster than predicted: a fused AdamW moves 32 bytes for each float32
    parameter, the operators that are counted by default 80.
    """
    name = canonical_name(name)
    if name not in MACHINES:
        advice = f"choose one of {', '.join(MACHINES)}, or calibrate() this one."
        raise CourseError(f"No machine is called {name!r}; {suggest(name, MACHINES, advice)}")
    return MACHINES[name]
