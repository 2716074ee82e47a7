"""The question that the arguments of `course plan` ask. Functions import what needs torch, since a stored answer needs none."""

import argparse
import sys
from dataclasses import dataclass, fields, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.cli.planning.card import read_card
from course_utils.errors import CourseError, suggest
from course_utils.memory.step.recipe import LOOPS, Recipe, read_fields

if TYPE_CHECKING:
    from course_utils.memory.planning.reading.fields import Reading
    from course_utils.memory.step.model import Source

DEFAULT_LOOP = "trainer"
FUNCTION_MARK = ".py:"


def defaults_of(loop: str) -> dict:
    """The fields of a recipe that the command sets by default for this loop. Raises `CourseError` for an unknown one."""
    if loop not in LOOPS:
        raise CourseError(f"No loop is called {loop!r}; {suggest(loop, LOOPS)}")
    return {"device": "cuda", **LOOPS[loop]}


@dataclass(frozen=True)
class Question:
    """The `arguments` of a command line, the model's name or path, and the `reading` of files and launch line.

    `reading` is None if the arguments name only a model.
    """

    arguments: argparse.Namespace
    model: str
    reading: "Reading | None"

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> "Question":
        """The question in `arguments`, from the files and the launch line; a model alone needs no reading, which saves time."""
        from course_utils.models import is_model

        word = arguments.model[0] if len(arguments.model) == 1 and arguments.launch is None else ""
        if word and is_model(word) and ("/" not in word or FUNCTION_MARK in word or Path(word).exists()):
            return cls(arguments, word, None)
        from course_utils.memory.planning.reading.read import read

        reading = read(arguments.model, arguments.launch, arguments.ranks).override(_fields_in(arguments))
        if arguments.data:
            unmodeled = {key: unmodeled for key, unmodeled in reading.unmodeled.items() if key != "sequence"}
            provenance = reading.provenance | {"sequence": str(arguments.data)}
            reading = replace(reading, unmodeled=unmodeled, provenance=provenance)
        return cls(arguments, reading.model, reading if reading.fields else None)

    @property
    def is_function(self) -> bool:
        """Whether the model is made by a function, FILE.py:FUNCTION."""
        return FUNCTION_MARK in self.model

    @cached_property
    def card(self) -> tuple[int, str | None]:
        """The bytes of the card, and the name of the machine for which to predict seconds, or None."""
        return read_card(self.arguments.memory, self.arguments.machine)

    @cached_property
    def lengths(self) -> list[int]:
        """The lengths in tokens of the examples in `--data`; empty without it."""
        from course_utils.memory.planning.reading.lengths import lengths_of

        return lengths_of(self.arguments.data) if self.arguments.data else []

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe to plan, with the longest of the known lengths."""
        recipe = self.recipe_with("")
        return replace(recipe, sequence=max(self.lengths)) if self.lengths else recipe

    def recipe_with(self, changes: str) -> Recipe:
        """The recipe of the options with `changes`, such as `checkpointing,batch=4`."""
        arguments = self.arguments
        reading = self.reading
        settings = (reading.fields if reading else _fields_in(arguments)) | read_fields(changes)
        loop = arguments.loop or (reading and reading.tool.loop) or DEFAULT_LOOP
        values = {**defaults_of(loop), **settings}
        if values.get("in_backward") and "clipping" not in settings:  # clipping needs all gradients at once
            values["clipping"] = False
        if "context_parallel" in values:
            values.setdefault("ranks", values["context_parallel"])
        if arguments.global_batch:
            round_size = values.get("batch", Recipe.batch) * values.get("ranks", 1) // values.get("context_parallel", 1)
            if arguments.global_batch % round_size:
                raise CourseError(
                    f"A global batch of {arguments.global_batch} does not divide into rounds of {round_size}, one micro-batch "
                    "per rank; change --global-batch or --batch."
                )
            values["accumulation"] = arguments.global_batch // round_size
        return Recipe(**values)

    @cached_property
    def source(self) -> "str | Source":
        """The model's name or path; or a `Source`, if a function makes the model or a script gives it another head."""
        if self.reading and self.reading.head:
            from course_utils.memory.step.model import with_head

            return with_head(self.model, *self.reading.head)
        return _load_source(self.model) if self.is_function else self.model


def _load_source(model: str) -> "Source":
    """The model that FILE.py:FUNCTION makes, with the examples of a function `batch` in the same file, if there is one.

    Raises `CourseError` if there is no such file or function, and for a function that requires arguments.
    """
    from runpy import run_path

    from course_utils.memory.step.model import source_of

    file, _, name = model.rpartition(FUNCTION_MARK)
    path = Path(f"{file}.py")
    if not path.is_file():
        raise CourseError(f"There is no file {path}.")
    sys.path.insert(0, str(path.parent.resolve()))  # as for a script, whose neighbors can be imported
    try:
        functions = run_path(str(path))
    except ModuleNotFoundError as error:
        raise CourseError(f"{path} imports {error.name}, which is not installed here.") from error
    if not callable(functions.get(name)):
        raise CourseError(f"{path} has no function called {name!r}; add one that returns the model.")
    try:
        signature(functions[name]).bind()
    except TypeError as error:
        raise CourseError(f"{name}() in {path} requires arguments ({error}); make them optional.") from error
    return source_of(functions[name], functions.get("batch"))


def _fields_in(arguments: argparse.Namespace) -> dict[str, object]:
    values = {field.name: getattr(arguments, field.name) for field in fields(Recipe)}
    return {name: value for name, value in values.items() if value is not None}
