"""What the reader chose by variables, and what comes of it here: the device and the scale."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from course_utils.doctor.finding import Finding
from course_utils.errors import CourseError
from course_utils.settings import Settings, read_settings
from course_utils.units import GiB, format_bytes

VARIABLES = ("COURSE_SCALE", "COURSE_DEVICE", "COURSE_SEED", "COURSE_HOME", "COURSE_STRICT")
# The gpu scale trains up to 124 million float32 parameters with AdamW: 4 x 4 bytes each, 1.9 GiB, and about twice as much again
# in activations at its batch size. On a GPU this is the GPU's; the host then only holds the processes with CUDA loaded.
LARGE_MODEL = 6 * GiB


def probe_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Each `COURSE_` variable: usable, not usable, or not one the course knows."""
    for name in sorted(name for name in environment if name.startswith("COURSE_")):
        if name not in VARIABLES:
            yield Finding("note", f"{name} is set, and is no variable of the course; those are {', '.join(VARIABLES)}.")
            continue
        try:
            read_settings({name: environment[name]})
            yield Finding("ok", f"{name}={environment[name]}")
        except CourseError as error:
            yield Finding("fix", f"{name}={environment[name]} cannot be used.", str(error))


def usable_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from those variables that can be used."""
    good = {}
    for name in VARIABLES:
        if name in environment and all(finding.mark == "ok" for finding in probe_variables({name: environment[name]})):
            good[name] = environment[name]
    return read_settings(good)


def with_usable_device(chosen: Settings) -> Settings:
    """`chosen`, on the CPU where the device it asks for is not there."""
    try:
        _ = chosen.device
    except CourseError:
        return replace(chosen, device_name="cpu")
    return chosen


def probe_device(asked: str, device: str, gpus: list[tuple[str, int]]) -> Finding:
    """The device; `gpus` are the names and bytes of memory of those that PyTorch sees."""
    if asked == "cuda" and device != "cuda":
        remedy = "Unset COURSE_DEVICE, or install a PyTorch built for CUDA and the GPU's driver."
        return Finding("fix", "COURSE_DEVICE=cuda asks for a GPU, and PyTorch sees none.", remedy)
    if device == "cuda":
        return _judge_gpu(*gpus[0])
    found = ", ".join(f"{name} with {format_bytes(memory)}" for name, memory in gpus)
    return Finding(
        "ok", f"Training on the CPU, though there is {found}" if found else "Training on the CPU; there is no GPU"
    )


def _judge_gpu(name: str, memory: int) -> Finding:
    text = f"Training on the GPU: {name} with {format_bytes(memory)}"
    if memory >= LARGE_MODEL:
        return Finding("ok", text)
    needed = format_bytes(LARGE_MODEL)
    return Finding("note", f"{text}; the gpu scale takes up to {needed}.", "Set COURSE_SCALE=laptop where it runs out.")


def probe_scale(asked: str, scale: str, device: str) -> Finding:
    """The scale and why it is that one."""
    reason = "COURSE_SCALE says so" if asked != "auto" else f"the default on {device}"
    return Finding("ok", f"Chapters run at {scale} scale: {reason}")
