"""What `course doctor` looks at. A probe takes facts and returns a `Finding`; `examine` collects the facts.

No probe raises: a probe is there for the machine on which something is broken. Nothing here needs a package that may be missing.
"""

import platform
import sys
from collections.abc import Iterator

from course_utils.doctor import abilities, choices, machine, packages
from course_utils.doctor.finding import Finding
from course_utils.settings import Settings, variables

__all__ = ["Finding", "examine", "verdict"]


def examine() -> Iterator[Finding]:
    """Every finding about this machine, as it is found; the slow ones come last."""
    environment = variables("COURSE_")
    yield from choices.probe_variables(environment)
    chosen = choices.usable_settings(environment)
    yield packages.probe_python(sys.version_info[:3])
    yield Finding("ok", f"{platform.system()} {platform.release()} on {platform.machine()}")
    yield packages.probe_course(packages.installed_version)
    yield from packages.probe_packages(packages.requirements(), packages.installed_version)
    yield machine.probe_home(chosen.home)
    yield machine.probe_display(machine.has_display())
    if packages.installed_version("torch") is not None:
        yield from _examine_torch(chosen)
    yield abilities.probe_hub(abilities.hub_answers)


def _examine_torch(chosen: Settings) -> Iterator[Finding]:
    if trouble := packages.probe_import("torch"):
        yield trouble
        return
    from torch import distributed

    usable = choices.with_usable_device(chosen)
    device, scale = str(usable.device), usable.scale.name
    yield choices.probe_device(chosen.device_name, device, machine.gpus())
    yield choices.probe_scale(chosen.scale_name, scale, device)
    yield machine.find_memory(scale, device)
    yield abilities.probe_workers(distributed.is_available() and distributed.is_gloo_available())
    yield abilities.probe_8bit_adam(device, abilities.run_snippet)


def verdict(findings: list[Finding]) -> str:
    """One sentence: what of the course runs here."""
    wrong = sum(finding.mark == "fix" for finding in findings)
    if wrong:
        return f"To be put right: {wrong}, marked 'fix' above. Chapters that do not depend on it run as they are."
    return (
        "Every chapter runs here. What needs a GPU or the Hub says so, and shows the CPU's or the bundled counterpart."
    )
