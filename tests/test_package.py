"""Rules for the package as a whole: what imports cost, which way they go, and what may not be called."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import course_utils

PACKAGE = Path(course_utils.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# From the ground floor up; a room imports rooms below it, and itself.
FLOORS = [
    {"errors", "units"},
    {"settings"},
    {"hub"},
    {"data", "models", "optim"},
    {"memory"},
    {"training", "ledger"},
    {"viz"},
    {"chapters"},
    {"cli"},
]
ORACLES = {
    "optim": {
        "torch.optim": {"Optimizer"},  # bookkeeping only: the one name of torch.optim that is allowed
        "bitsandbytes": set(),
        "transformers": set(),
    }
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def floor_of(room: str) -> int:
    return next(level for level, rooms in enumerate(FLOORS) if room in rooms)


def imported_rooms(path: Path) -> set[str]:
    """Rooms that a module imports, whether at its top or inside a function; type-checking imports included."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "course_utils":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_utils."):
            rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("course_utils.")}
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_only(path):
    room = room_of(path)
    if room == "__init__":
        return
    for other in imported_rooms(path) - {room}:
        assert floor_of(other) < floor_of(room), f"{room} may not import {other}: imports go down only"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_settings_reads_the_environment(path):
    if path.name == "settings.py":
        return
    names = {
        node.attr for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)
    }
    assert not names & {"environ", "getenv", "putenv"}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def oracle_uses(source: str, oracles: dict[str, set[str]]) -> list[str]:
    """Places in `source` that name an oracle: imported, or reached by a dotted name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        else:
            continue
        for name in names:
            for oracle, allowed in oracles.items():
                inside = name == oracle or name.startswith(f"{oracle}.")
                rest = name.removeprefix(oracle).lstrip(".").split(".")[0]
                if inside and rest not in allowed and not (isinstance(node, ast.Attribute) and not rest):
                    found.append(f"line {node.lineno}: {name}")
    fused = [node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return found + [name for name in fused if name.startswith(("_fused_", "_single_tensor_", "_multi_tensor_"))]


@pytest.mark.parametrize("room", ORACLES)
def test_code_by_hand_never_names_its_oracle(room):
    paths = [path for path in MODULES if room_of(path) == room]
    assert paths
    for path in paths:
        assert oracle_uses(path.read_text(encoding="utf-8"), ORACLES[room]) == [], path.name


@pytest.mark.parametrize(
    "cheat",
    [
        "import torch\nclass AdamW(torch.optim.AdamW): pass",
        "from torch.optim import AdamW",
        "from torch.optim.adamw import adamw",
        "import torch.optim.adamw",
        "import torch.optim as o",
        "import bitsandbytes as bnb",
        "from transformers import Adafactor",
        "import torch\ntorch._fused_adamw_([])",
    ],
)
def test_the_rule_about_oracles_sees_each_way_around_it(cheat):
    assert oracle_uses(cheat, ORACLES["optim"])


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return result.stdout


def test_importing_the_package_loads_nothing_heavy():
    loaded = run_python(
        "import sys, course_utils, course_utils.cli, course_utils.settings; print(*sys.modules)"
    ).split()
    heavy = {
        "torch",
        "transformers",
        "datasets",
        "accelerate",
        "bitsandbytes",
        "pandas",
        "numpy",
        "matplotlib",
        "IPython",
    }
    assert not heavy & set(loaded)


def test_rooms_are_there_when_used_and_an_unknown_one_is_named():
    assert course_utils.units.MiB == 2**20
    with pytest.raises(AttributeError, match="no attribute 'optimizers'; its rooms are"):
        _ = course_utils.optimizers
