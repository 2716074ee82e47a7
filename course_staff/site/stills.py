"""Stills of the figures to play with: for each chapter three pictures, of the starting values and of two other settings.

The settings are in `stills.toml`, a list for each chapter: a `label` in plain words, and in `set` the values of the controls
that are not where they start, by argument name (`name.part` of a control made of several).
"""

import base64
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from course_staff.notebooks.clean import STORED_SCALE
from course_staff.notebooks.files import make_folder
from course_staff.notebooks.plays import Play, catch
from course_staff.site.pages import Picture
from course_utils.errors import CourseError
from course_utils.files import atomic_write, read_json, write_json
from course_utils.settings import set_variable

SETTINGS = Path(__file__).parent / "stills.toml"
FOLDER, PICTURES_FILE = SETTINGS.with_name("stills"), "stills.json"


@dataclass(frozen=True)
class Setting:
    """What the controls are set to, and in `label` what that is and what to look at."""

    label: str
    values: dict = field(default_factory=dict)  # by control


def settings_of(chapter: str) -> list[Setting]:
    """The settings of the chapter called `chapter`, such as `03_adamw`; raises `CourseError` if it has none."""
    by_chapter = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    if chapter not in by_chapter:
        raise CourseError(f"{SETTINGS.name} has no settings for {chapter}; add three.")
    return [Setting(values=setting.pop("set", {}), **setting) for setting in by_chapter[chapter]]


def load_stills(chapter: str, folder: Path = FOLDER) -> list[Picture]:
    """The pictures of the chapter called `chapter` that were drawn last, in the order of its settings."""
    pictures, settings = read_json(folder / PICTURES_FILE) or {}, settings_of(chapter)
    names = [_file_name(chapter, count) for count in range(1, len(settings) + 1)]
    if [name for name in pictures if _belongs_to(chapter, name)] != names:
        raise CourseError(
            f"{chapter} has stills that differ from its settings; draw them with `course site --stills {chapter}`."
        )
    return [Picture(name, **pictures[name], label=setting.label) for name, setting in zip(names, settings, strict=True)]


def draw(notebook: Path, folder: Path = FOLDER, scale: str = STORED_SCALE) -> list[Picture]:
    """Stills of the chapter at `notebook` in `folder`, as lossless WebP files `NN-1.webp`, `NN-2.webp` …, at `scale`.

    What the figure needs of the chapter is run in this process, whose scale stays `scale`. Raises `CourseError`, naming the
    chapter and the control, where a setting is not one that the control can have.
    """
    make_folder(folder)
    set_variable("COURSE_SCALE", scale)
    pictures = list(_draw_each(notebook, folder))
    new_entries = {still.file: {"alt": still.alt, "width": still.width, "height": still.height} for still in pictures}
    old_entries = read_json(folder / PICTURES_FILE) or {}
    others = {name: entry for name, entry in old_entries.items() if not _belongs_to(notebook.stem, name)}
    write_json(folder / PICTURES_FILE, dict(sorted({**others, **new_entries}.items())))
    return pictures


def _file_name(chapter: str, count: int) -> str:
    return f"{chapter.partition('_')[0]}-{count}.webp"


def _belongs_to(chapter: str, name: str) -> bool:
    return name.partition("-")[0] == chapter.partition("_")[0]


def _draw_each(notebook: Path, folder: Path) -> Iterator[Picture]:
    from matplotlib import rc_context
    from PIL import Image

    from course_utils.viz.display import picture

    with rc_context():  # the chapter brings the course's style
        play = catch(notebook)
        for count, setting in enumerate(settings_of(notebook.stem), start=1):
            try:
                values = _control_values(play, setting)
            except CourseError as error:
                raise CourseError(f"{SETTINGS.name}, {notebook.stem}, {setting.label!r}: {error}") from None
            bundle, metadata = picture(*play.draw(**values))
            image = Image.open(BytesIO(base64.b64decode(bundle["image/png"]))).convert("RGB")
            size_and_alt, name = metadata["image/png"], _file_name(notebook.stem, count)
            with atomic_write(folder / name) as draft:
                image.save(draft, "webp", lossless=True, method=6)
            height = round(size_and_alt["width"] * image.height / image.width)
            yield Picture(name, **size_and_alt, height=height, label=setting.label)


def _control_values(play: Play, setting: Setting) -> dict:
    """The values of all controls in `setting`; the controls are put back afterwards."""
    from course_staff.demos.controls import press
    from course_utils.viz.controls import leaves

    with_values = [leaf for control in play.controls.values() for leaf in leaves(control) if hasattr(leaf, "value")]
    before = [leaf.value for leaf in with_values]
    try:
        press(setting.values, play.controls)
        return {name: control.value for name, control in play.controls.items()}
    finally:
        for leaf, value in zip(with_values, before, strict=True):
            leaf.value = value
