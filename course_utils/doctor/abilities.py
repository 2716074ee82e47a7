"""What some chapters need beyond packages: several workers, 8-bit Adam, the Hub; each is tried."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable

from course_utils.doctor.finding import Finding

_ADAM_8BIT = """
import torch, bitsandbytes
device = {device!r}
weight = torch.nn.Parameter(torch.ones(8192, device=device))
optimizer = bitsandbytes.optim.Adam8bit([weight], lr=0.1)
weight.square().sum().backward()
optimizer.step()
assert optimizer.state[weight]["state1"].dtype == torch.uint8 and bool((weight < 1).all())
"""
_ADAM_8BIT_TIMEOUT = 120


def probe_workers(gloo: bool) -> Finding:
    """Whether the chapters on several workers run; they do on any machine where PyTorch has gloo."""
    method = multiprocessing.get_start_method()
    if gloo:
        return Finding("ok", f"Several workers: PyTorch has gloo; processes start by {method}")
    remedy = "Install a PyTorch from pytorch.org or PyPI; only the chapters on several workers need it."
    return Finding("note", "Several workers: this PyTorch was built without gloo.", remedy)


def run_snippet(source: str, timeout: float) -> str | None:
    """Run Python source in a process of its own; None when it went well, else its last line on stderr."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:g} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else None


def probe_8bit_adam(device: str, run: Callable[[str, float], str | None]) -> Finding:
    """Whether bitsandbytes really takes a step with 8-bit state on the device."""
    trouble = run(_ADAM_8BIT.format(device=device), _ADAM_8BIT_TIMEOUT)
    if trouble is None:
        return Finding("ok", f"8-bit Adam: bitsandbytes takes a step on {device}")
    remedy = "Update bitsandbytes; without it, 8-bit Adam by hand still runs, and the library's cells do not."
    return Finding("fix", f"8-bit Adam: bitsandbytes fails on {device} ({trouble}).", remedy)


def hub_answers() -> bool:
    """Whether the Hub can be reached, asked once and briefly."""
    from course_utils import hub

    return hub.answers(timeout=3.0)


def probe_hub(answers: Callable[[], bool]) -> Finding:
    """Whether the Hugging Face Hub can be reached."""
    try:
        reached = answers()
    except ImportError:
        reached = False
    if reached:
        return Finding("ok", "The Hugging Face Hub answers; it is not needed")
    return Finding("note", "The Hugging Face Hub does not answer; it is not needed: models and data are built here.")
