"""Of the repository: what imports cost, which way they go, what may not be called, and what tests are called."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch

import course_staff
import course_utils
from course_utils import grading, optim

PACKAGE, STAFF = (Path(package.__file__).parent for package in (course_utils, course_staff))
MODULES, STAFFS = (sorted(package.rglob("*.py")) for package in (PACKAGE, STAFF))


def map_of(package: str) -> list[tuple[list[str], list[str]]]:
    """The rooms of each row of a package's map in CONTRIBUTING.md, from the ground floor up, and the files it names in them."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.search(rf"\n### `{package}`.*?\|---[^\n]*\n((?:\|[^\n]*\n)+)", text, re.DOTALL)[1]
    rows = [[column.strip() for column in row.strip("|").split("|")] for row in table.splitlines()]
    return [(re.findall(r"`([\w/]+)`", row[0]), re.findall(r"`(\w+\.py)`", f"{row[2]} {row[3]}")) for row in rows]


@cache
def rooms_on_the_map(package: str) -> list[str]:
    return [room for rooms, _ in map_of(package) for room in rooms]


ORACLES = {
    "optim": {
        "torch.optim": {"Optimizer"},  # bookkeeping only: the one name of torch.optim that is allowed
        "bitsandbytes": set(),
        "transformers": set(),
    },
    "precision": {"torch.amp": set(), "torch.cuda.amp": set(), "torch.autocast": set(), "torch.finfo": set()},
    "distributed": {
        "torch.nn.parallel": set(),
        "torch.distributed.fsdp": set(),
        "torch.distributed.tensor": set(),
        "torch.distributed.optim": set(),
        "torch.distributed.algorithms": set(),
        "torch.distributed._composable": set(),
        "torch.distributed.checkpoint": set(),
        "accelerate": set(),
        "deepspeed": set(),
    },
    "techniques": {
        "torch.utils.checkpoint": set(),
        "torch.autograd.graph.save_on_cpu": set(),
        "torch.nn.attention": set(),
        "torch.nn.functional.scaled_dot_product_attention": set(),
        "transformers": set(),
    },
    "autodiff": {"torch": set()},  # the engine stands on NumPy alone
}


def room_of(path: Path, package: Path = PACKAGE) -> str:
    return room_at(path.relative_to(package).with_suffix("").parts)


def room_at(parts: tuple[str, ...]) -> str:
    """`memory` has rooms of its own, and they too have an order."""
    room = "/".join(parts[:2])
    return room if room in rooms_on_the_map("course_utils") else parts[0]


def imported_rooms(path: Path, package: str = "course_utils") -> set[str]:
    """Rooms that a module imports, whether at its top or inside a function; type-checking imports included."""
    rooms, helpers = set(), {"import_when_used"}  # of the package itself
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == package:
            rooms |= {alias.name for alias in node.names} - helpers
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            rooms.add(room_at(tuple(node.module.split(".")[1:])))
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names if alias.name.startswith(f"{package}."))
            rooms |= {room_at(tuple(name.split(".")[1:])) for name in names}
    return rooms


@pytest.mark.parametrize("package", [PACKAGE, STAFF], ids=lambda package: package.name)
def test_the_map_lists_every_room_and_a_room_imports_only_those_above_it_on_the_map(package):
    order = rooms_on_the_map(package.name)
    paths = [path for path in package.rglob("*.py") if path.parent != package or path.name != "__init__.py"]
    assert sorted(order) == sorted({room_of(path, package) for path in paths})
    later = [
        f"{path.relative_to(package)} imports {other}"
        for path in paths
        for other in imported_rooms(path, package.name) - {room_of(path, package)}
        if order.index(other) > order.index(room_of(path, package))
    ]
    assert not later


@pytest.mark.parametrize("package", [PACKAGE, STAFF], ids=lambda package: package.name)
def test_the_files_that_the_map_names_are_there(package):
    files_by_rooms = [(rooms, file) for rooms, files in map_of(package.name) for file in files]
    assert files_by_rooms
    for rooms, file in files_by_rooms:
        assert any((package / room / file).is_file() or f"{room}.py" == file for room in rooms), file


def test_nothing_that_a_learner_imports_needs_the_staffs_package():
    assert [path for path in MODULES if re.search(r"(import|from) course_staff", path.read_text("utf-8"))] == []


def test_shapes_stand_only_where_torch_is_needed_anyway():
    """What imports jaxtyping imports torch at its top too, and what a command or `autodiff` starts with imports neither."""
    imports = re.compile(r"^\s*(import|from) jaxtyping", re.M)
    shaped = {path for path in [*MODULES, *STAFFS] if imports.search(path.read_text("utf-8"))}
    assert {room_of(path) for path in shaped} == {"distributed", "optim", "precision", "techniques"}
    assert all(re.search(r"^(import|from) torch\b", path.read_text("utf-8"), re.M) for path in shaped)
    program = (
        "import sys; from course_utils import autodiff, chapters, desk, errors, files, grading, memory, models, units; "
    )
    program += "print({'torch', 'jaxtyping'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "set()\n"


def test_only_settings_reads_the_environment():
    for path in [*MODULES, *STAFFS]:
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {node.attr for node in tree if isinstance(node, ast.Attribute)}
        assert path.name == "settings.py" or not names & {"environ", "getenv", "putenv"}, path


# Ways to reach a module or a name that reading the source could not follow.
WAYS_AROUND = {"import_module", "__import__", "getattr", "globals", "vars", "eval", "exec"}
WAYS_AROUND |= {"__subclasses__", "__dict__"}


def dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """`a.b.c` of an attribute chain, its first name replaced by what it was imported as."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, aliases)}.{node.attr}"
    return aliases.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def imports_of(tree: ast.AST) -> dict[str, str]:
    """Local name to full name, for every import in the tree."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {
                alias.asname or alias.name.split(".")[0]: alias.name if alias.asname else alias.name.split(".")[0]
                for alias in node.names
            }
            names |= {alias.name: alias.name for alias in node.names}
    return names


def oracle_uses(source: str, oracles: dict[str, set[str]]) -> list[str]:
    """Names in `source` that are an oracle, lead to one, or could hide one."""
    tree = ast.parse(source)
    imported = imports_of(tree)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inner = {id(node.value) for node in attributes}
    chains = [dotted(node, imported) for node in attributes if id(node) not in inner]
    plain = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {node.attr for node in attributes}
    kernels = ("_fused_", "_single_tensor_", "_multi_tensor_")
    uses = [name for name in plain if name in WAYS_AROUND or name.startswith(kernels)]
    uses += [name for name in chains if name.startswith("sys.modules")]
    for name in [*imported.values(), *chains]:
        for oracle, allowed in oracles.items():
            rest = name.removeprefix(oracle).removeprefix(".").split(".")[0]
            if (name == oracle or name.startswith(f"{oracle}.")) and rest not in allowed:
                uses.append(name)
    return uses


def defined_names(tree: ast.AST) -> set[str]:
    """Of functions, classes, variables, and what a class calls its own."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def names_of_others(tree: ast.AST) -> set[str]:
    """What is imported, looked up in something else, or replaced there by its name as text."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.alias(name=name):
                names.add(name)
            case ast.Attribute(value=owner, attr=name) if getattr(owner, "id", None) != "self":
                names.add(name)
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "setitem" | "delattr" | "delitem" | "object"), args=arguments
            ):
                names |= {argument.value for argument in arguments if isinstance(argument, ast.Constant)}
            case ast.Call(func=ast.Name(id="getattr" | "patch"), args=arguments):
                names |= {argument.value for argument in arguments if isinstance(argument, ast.Constant)}
    return {str(name).rpartition(".")[2] for name in names}


def test_no_test_knows_a_private_name_of_the_course():
    """What is private may change its form at any time; what it does is tested through what is public."""
    paths = [*MODULES, *STAFFS, *(PACKAGE.parent / "benchmarks").rglob("*.py")]
    names = set().union(*(defined_names(ast.parse(path.read_text("utf-8"))) for path in paths))
    private = {name for name in names if re.match("_[A-Za-z]", name)}
    assert {"_find_kind", "_segments", "_GRAIN"} <= private
    private -= {"_apply", "_repr_html_"}  # torch's and IPython's, too
    tests = {path: ast.parse(path.read_text("utf-8")) for path in Path(__file__).parent.rglob("*.py")}
    private_by_file = {path.name: sorted(private & names_of_others(tree)) for path, tree in tests.items()}
    assert {file: names_found for file, names_found in private_by_file.items() if names_found} == {}


def mirrored(path: Path) -> list[str]:
    """What a file of tests may be called by the folder that it is in: after a file or a room there, or the room and its file."""
    *rooms, name = path.relative_to(Path(__file__).parent).with_suffix("").parts
    roots = {("benchmarks",): PACKAGE.parent / "benchmarks", ("staff",): STAFF}
    root = roots.get(tuple(rooms[:1]), PACKAGE)
    rooms = rooms if root is PACKAGE else rooms[1:]
    folder = root.joinpath(*rooms)
    paths = folder.rglob("*") if rooms else folder.glob("*")
    names = [path.stem for path in paths if path.suffix == ".py" or path.is_dir()]
    return [f"test_{prefix}{stem}" for stem in names for prefix in ("", *(f"{room}_" for room in rooms[-1:]))]


def test_a_file_of_tests_is_called_after_what_it_tests_or_says_what_it_is_of():
    """What comes after the name says of which part or under which aspect."""
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        if path.relative_to(tests).parts[0] in ("browser", "strangers"):
            continue
        if not any(path.stem == name or path.stem.startswith(f"{name}_") for name in mirrored(path)):
            text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            assert text.startswith(("Of the room: ", "Of the repository: ")), (
                f"{path} is named after no file; begin its docstring with “Of the room: ” or “Of the repository: ”"
            )


def test_no_two_files_of_tests_have_one_name():
    """pytest imports each by its name alone, and so does a rank that a test starts."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("room", ORACLES)
def test_code_by_hand_never_names_its_oracle(room):
    # Those two start processes, and say so.
    paths = [path for path in MODULES if room_of(path) == room and path.name not in ("launch.py", "waiting.py")]
    assert paths
    for path in paths:
        uses = oracle_uses(path.read_text(encoding="utf-8"), ORACLES[room])
        assert not uses, path.name


@pytest.mark.parametrize(
    "cheat",
    [
        "from torch.optim.adamw import adamw",
        "import torch\no = torch.optim\no.AdamW([])",
        "import torch\ntorch._fused_adamw_([])",
        "import torch\ngetattr(torch.optim, 'AdamW')",
    ],
)
def test_the_rule_about_oracles_sees_ways_around_it(cheat):
    assert oracle_uses(cheat, ORACLES["optim"])


def test_code_by_hand_runs_where_the_oracles_are_broken(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("code by hand called its oracle")

    for name in ("SGD", "Adagrad", "RMSprop", "Adam", "AdamW", "Adafactor"):
        kind = vars(torch.optim)[name]
        monkeypatch.setattr(kind, "step", refuse)
        monkeypatch.setattr(kind, "__init__", refuse)
    for oracle in ("sgd", "adagrad", "rmsprop", "adam", "adamw", "_adafactor"):
        module = import_module(f"torch.optim.{oracle}")
        for name in dir(module):
            if name.startswith(("_single_tensor", "_multi_tensor", "_fused", oracle.removeprefix("_"))):
                monkeypatch.setattr(module, name, refuse)
    for kind in (optim.SGD, optim.AdaGrad, optim.RMSProp, optim.Adam, optim.AdamW, optim.Adafactor, optim.AdamW8bit):
        p = torch.ones(4096, requires_grad=True)
        p.grad = torch.ones(4096)
        kind([p]).step()
        assert (p < 1).all()


def test_rooms_are_there_when_used_and_an_unknown_one_is_named():
    assert course_utils.units.MiB == 2**20
    with pytest.raises(AttributeError, match="no attribute 'optimizers'; it has autodiff"):
        _ = course_utils.optimizers


def test_the_room_of_grading_is_light_until_it_is_used():
    code = (
        "import sys, course_utils.grading as g; heavy = {'torch', 'jaxtyping'}; "
        "print(heavy & set(sys.modules), g.Case.__name__, heavy & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert output == "set() Case set()\n"
    with pytest.raises(AttributeError, match="no attribute 'quiz'; it has"):
        _ = grading.quiz
    assert {"exercise", "stream", "Case"} <= set(dir(grading))
