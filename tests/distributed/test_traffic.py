"""What is counted as sent, beside the counter of a network interface that nobody else uses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

IN_A_NETWORK_OF_ITS_OWN = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def possible() -> bool:
    try:
        return subprocess.run([*IN_A_NETWORK_OF_ITS_OWN, "true"], capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.slow
@pytest.mark.skipif(not possible(), reason="needs Linux, iproute2 and the right to make a network namespace")
def test_the_interface_sends_what_is_counted():
    command = [*IN_A_NETWORK_OF_ITS_OWN, sys.executable, str(Path(__file__).with_name("counted_wire.py"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    by_hand, by_step = map(json.loads, result.stdout.splitlines()[-2:])
    assert by_hand["sent"] == pytest.approx(by_hand["counted"], rel=0.02)
    by_gloo = {name: by_step.pop(name) for name in ("ZeRO-1", "FSDP")}
    for name, (sent, counted) in by_step.items():
        assert sent == pytest.approx(counted, rel=0.02), name
    # Gloo's reduce scatters the sum around the ring and gathers it at its owner, half as much again with two ranks; the
    # broadcast is the other half of a step. It makes an all-reduce of every reduce-scatter, one of FSDP's three passes.
    for name, factor in (("ZeRO-1", 5 / 4), ("FSDP", 4 / 3)):
        sent, counted = by_gloo[name]
        assert sent == pytest.approx(factor * counted, rel=0.02), name
