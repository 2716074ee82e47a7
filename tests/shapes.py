"""Code by hand under its own annotations: beartype holds each call to its types, and to jaxtyping's shapes."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
_ON_RANKS = ["ddp", "fsdp", "local_sgd", "pipeline", "pipeline_schedules", "qsgd", "ring", "ring_attention"]
_ON_RANKS += ["sharded_optimizer", "tensor_parallel"]
BY_HAND = ["optim", "precision", "techniques", *(f"distributed.{name}" for name in _ON_RANKS)]
assert all(find_spec(f"course_utils.{name}") for name in BY_HAND)
_CHECKER = """
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is welcome where a float is
"""
_AT_START = f"""
from jaxtyping import install_import_hook

install_import_hook([f"course_utils.{{name}}" for name in {BY_HAND}], "checker.check")
"""


def run_checked(folder: Path, *arguments: str, seconds: float) -> subprocess.CompletedProcess:
    """Python with these arguments; in it, and in each that it starts, such as a rank, calls of code by hand are checked."""
    (folder / "checker.py").write_text(_CHECKER, encoding="utf-8")
    (folder / "sitecustomize.py").write_text(_AT_START, encoding="utf-8")  # Python imports it when it starts
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
