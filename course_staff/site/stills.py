"""Stills of the figures to play with: for each chapter three pictures, of the starting values and of two other settings.

The settings stand in `stills.toml`, a list for each chapter: a `label` in plain words, and in `set` the values of the controls
that are not where they start, by argument name (`name.part` of a control made of several).
"""

import base64
import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from course_staff.notebooks.clean import STORED_SCALE
from course_staff.notebooks.files import make_folder, read_notebook
from course_staff.notebooks.plays import Play, catch, needed
from course_staff.site.pages import Picture
from course_utils.chapters import find_place
from course_utils.errors import CourseError
from course_utils.files import read_json, replacing, write_json
from course_utils.settings import set_variable

SETTINGS = Path(__file__).parent / "stills.toml"
KEPT = "stills.json"


@dataclass(frozen=True)
class Setting:
    """What the controls are set to, and in `label` what that is and what to look at."""

    label: str
    set: dict = field(default_factory=dict)


def settings_of(chapter: str) -> list[Setting]:
    """The settings of the chapter called `chapter`, such as `03_adamw`; raises `CourseError` where it has none."""
    every = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    if chapter not in every:
        raise CourseError(f"{SETTINGS.name} has no settings for {chapter}; write three into it.")
    return [Setting(**one) for one in every[chapter]]


def draw(notebook: Path, folder: Path, scale: str = STORED_SCALE) -> list[Picture]:
    """Stills of the chapter at `notebook` in `folder`, as lossless WebP files `NN-1.webp`, `NN-2.webp` …, at `scale`.

    What the figure needs of the chapter is run in this process, whose scale stays `scale`. Nothing is run where the pictures
    in `folder` were drawn from the same statements, settings and package. Raises `CourseError`, naming the chapter and the
    control, where a setting is not one that the control can have.
    """
    settings, number = settings_of(notebook.stem), notebook.stem.partition("_")[0]
    source = _digest(scale, needed(read_notebook(notebook).cells), [asdict(one) for one in settings])
    make_folder(folder)
    kept = read_json(folder / KEPT) or {}
    drawn = kept.get(number, {"source": None, "stills": []})
    if drawn["source"] != source or not all((folder / still["file"]).is_file() for still in drawn["stills"]):
        set_variable("COURSE_SCALE", scale)
        drawn = {"source": source, "stills": [asdict(one) for one in _drawn(notebook, settings, folder, number)]}
        write_json(folder / KEPT, {**kept, number: drawn})
    return [Picture(**still) for still in drawn["stills"]]


def _digest(*parts) -> str:
    """A name for all that pictures are made from: `parts`, and each file of the package."""
    return sha256(json.dumps([*parts, _package_digest()]).encode()).hexdigest()


@cache
def _package_digest() -> str:
    digest = sha256()
    for path in [Path(__file__), *sorted((find_place().root / "course_utils").rglob("*"))]:
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _drawn(notebook: Path, settings: list[Setting], folder: Path, number: str) -> Iterator[Picture]:
    from matplotlib import rc_context
    from PIL import Image

    from course_utils.viz.display import picture

    with rc_context():  # the chapter brings the course's style
        play = catch(notebook)
        for count, setting in enumerate(settings, start=1):
            try:
                values = _values(play, setting)
            except CourseError as error:
                raise CourseError(f"{SETTINGS.name}, {notebook.stem}, {setting.label!r}: {error}") from None
            bundle, metadata = picture(*play.draw(**values))
            shown = Image.open(BytesIO(base64.b64decode(bundle["image/png"]))).convert("RGB")
            about, name = metadata["image/png"], f"{number}-{count}.webp"
            with replacing(folder / name) as draft:
                shown.save(draft, "webp", lossless=True, method=1)
            height = round(about["width"] * shown.height / shown.width)
            yield Picture(name, **about, height=height, label=setting.label)


def _values(play: Play, setting: Setting) -> dict:
    """What the controls come to in `setting`; afterwards they stand where they stood."""
    from course_staff.demos.controls import press
    from course_utils.viz.controls import leaves

    every = [leaf for control in play.controls.values() for leaf in leaves(control) if hasattr(leaf, "value")]
    before = [leaf.value for leaf in every]
    try:
        press(setting.set, play.controls)
        return {name: control.value for name, control in play.controls.items()}
    finally:
        for leaf, value in zip(every, before, strict=True):
            leaf.value = value
