"""What the planner's page needs to know: the formulas that were found, and the package's own constants and words.

`python -m benchmarks.site_formulas` finds the formulas. The page evaluates them by the rules of `memory.plan` and
`memory.allocation`, which `static/planner.js` follows to the byte.
"""

import base64
import gzip
import json
import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

from course_utils import models
from course_utils.errors import CourseError
from course_utils.hardware import MACHINES
from course_utils.memory.finder import MONOMIALS
from course_utils.memory.plan import ABOVE, CHANGES, CONTEXT, DOES_NOT, FITS, TIGHT, WORKSPACES
from course_utils.memory.recipe import Recipe
from course_utils.memory.usage import KINDS
from course_utils.models.configurations import SIZES
from course_utils.viz.style import COLORS

FILE = Path(__file__).with_name("planner.json.gz")
MODELS = (*models.PUBLISHED, *models.PUBLIC)
TRAINED = {"all": {}, "lora": {"lora": 16}, "qlora": {"lora": 16, "quantized": "nf4"}}
"""What is trained, by the page's word for it, and the fields of a recipe that say so."""
OPTIMIZERS = ("adamw-foreach", "adamw-fused", "adamw8bit", "adamw4bit", "adafactor", "sgd")
PRECISIONS = ("fp32", "autocast", "bf16")
UNIT = 32
"""Lengths are multiples of it, to which some kernels round them up."""
LARGEST = {"batch": 1024, "accumulation": 64, "sequence": 2**17}
FIELDS = {
    "batch": "examples of a micro-batch",
    "sequence": "tokens of an example",
    "accumulation": "micro-batches of an update",
}
"""What the page calls the numbers of a question."""
_HUB = re.compile(r"huggingface\.co/([^/]+/[^/]+)/")
DENOMINATOR = 24
"""The formulas' coefficients are whole numbers of its parts of a byte."""
QUESTION = {
    "model": "qwen2.5-0.5b",
    "card": "RTX 4090",
    "batch": 1,
    "sequence": 1024,
    "optimizer": "adamw-foreach",
    "precision": "autocast",
    "checkpointing": False,
    "kind": "all",
    "accumulation": 1,
}
"""What the page asks where its address says nothing."""
WORDS = {
    "adamw-foreach": "AdamW, torch's default on a GPU",
    "adamw-fused": "AdamW, fused",
    "adamw8bit": "AdamW, states of 8 bits",
    "adamw4bit": "AdamW, states of 4 bits",
    "adafactor": "Adafactor",
    "sgd": "SGD without momentum",
    "fp32": "float32",
    "autocast": "autocast: products in bfloat16",
    "bf16": "all in bfloat16",
    "all": "all weights",
    "lora": "adapters only: LoRA of rank 16",
    "qlora": "adapters on weights of 4 bits: QLoRA of rank 16",
}
LEVELS = (
    "The training stays the same. You pay in time.",
    "The numbers change a little.",
    "Another optimizer, or far fewer bits.",
    "Less of the model is trained.",
)


@cache
def formulas() -> dict:
    """What the file holds: `models` with their pieces, the `patterns` these share, and what is left `out` with the reason."""
    return json.loads(gzip.decompress(FILE.read_bytes()))


def recipe_of(question: dict) -> Recipe:
    """The recipe that the page's question means."""
    names = ("optimizer", "precision", "batch", "sequence", "accumulation", "checkpointing")
    return Recipe(device="cuda", **{name: question[name] for name in names}, **TRAINED[question["kind"]])


def _changes() -> list[dict]:
    """Each change of the ladder that leads to recipes of the page, with what it sets in each of them.

    `sets` has a list for each recipe, by its key: what `Change.apply` says, in the page's own fields.
    """
    found = []
    for change in CHANGES:
        sets = {}
        for optimizer, precision, checkpointing, kind, batch in product(
            OPTIMIZERS, PRECISIONS, (False, True), TRAINED, (1, 2)
        ):
            asked = {"optimizer": optimizer, "precision": precision, "checkpointing": checkpointing, "kind": kind}
            asked |= {"batch": batch, "sequence": UNIT, "accumulation": 1}
            if fields := _in_page(asked, change):
                key = " ".join(map(str, (optimizer, precision, int(checkpointing), kind, batch)))
                sets[key] = fields
        if sets:
            found.append({"name": change.name, "level": change.level, "costs": change.costs, "sets": _by_fields(sets)})
    return found


def _in_page(asked: dict, change) -> dict:
    """The page's fields that a change sets; none where it sets others, or makes no difference."""
    recipe = recipe_of(asked)
    try:
        fields = change.apply(recipe)
        changed = replace(recipe, **fields)
    except CourseError:
        return {}
    names = ("optimizer", "precision", "checkpointing", "batch", "accumulation")
    shown = {name: getattr(changed, name) for name in names if name in fields}
    kind = next((kind for kind in TRAINED if recipe_of(asked | shown | {"kind": kind}) == changed), None)
    if kind is None or shown.get("optimizer", OPTIMIZERS[0]) not in OPTIMIZERS:
        return {}
    return shown | ({"kind": kind} if kind != asked["kind"] else {})


def _by_fields(sets: dict[str, dict]) -> list[list]:
    """Pairs of what is set and the keys of the recipes in which it is."""
    keys: dict[str, list[str]] = {}
    for key, fields in sets.items():
        keys.setdefault(json.dumps(fields), []).append(key)
    return [[json.loads(fields), those] for fields, those in keys.items()]


def _sizes(config) -> dict:
    """What tells a model's `config.json` from another's, by the names that it has there."""
    said = config.to_dict()
    own = {config.attribute_map.get(name, name) for name in SIZES} | {"tie_word_embeddings", "num_local_experts"}
    return {name: said[name] for name in sorted(own & said.keys() - {"num_labels", "max_position_embeddings"})}


def facts() -> dict:
    """All that the page takes from the package, as plain values."""
    configurations = {name: models.configuration(name) for name in MODELS}
    changes = _changes()
    kinds = {type(one).model_type: _sizes(type(one)()) for one in configurations.values()}
    return {
        "question": QUESTION,
        "words": WORDS,
        "choices": {"optimizer": OPTIMIZERS, "precision": PRECISIONS, "kind": list(TRAINED)},
        "trained": TRAINED,
        "unit": UNIT,
        "largest": LARGEST,
        "fields": FIELDS,
        "cards": {name: machine.memory for name, machine in MACHINES.items()},
        "without_bfloat16": [name for name, machine in MACHINES.items() if "bfloat16" not in machine.flops],
        "hubs": {_HUB.search(public.source)[1]: name for name, public in models.PUBLIC.items()},
        "positions": {name: getattr(one, "max_position_embeddings", None) for name, one in configurations.items()},
        "kinds": {kind: COLORS[kind] for kind in KINDS},
        "line": COLORS["warning"],
        "context": CONTEXT,
        "workspaces": WORKSPACES,
        "above": ABOVE,
        "verdicts": [FITS, TIGHT, DOES_NOT],
        "changes": changes,
        "others": [one.name for one in CHANGES if one.name not in {change["name"] for change in changes}],
        "levels": LEVELS,
        "monomials": MONOMIALS,
        "denominator": DENOMINATOR,
        "configurations": {name: {"model_type": one.model_type, **_sizes(one)} for name, one in configurations.items()},
        "defaults": kinds,
    }


def write(folder: Path) -> Path:
    """The script `planner-data.js` in `folder`: what `facts` says, and the file of formulas as it is, in base64."""
    packed = base64.b64encode(FILE.read_bytes()).decode("ascii")
    path = folder / "planner-data.js"
    said = json.dumps({"facts": facts(), "formulas": packed}, separators=(",", ":"))
    path.write_text(f"window.coursePlannerData = {said};\n", encoding="utf-8")
    return path
