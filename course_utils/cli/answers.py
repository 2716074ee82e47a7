"""Answers of `course plan`, stored under a key of all that they depend on."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from course_utils.cli.question import Question
from course_utils.store import Section


class Answer(NamedTuple):
    """The text, its content as plain values, and the exit code."""

    text: str
    values: dict | list
    code: int


_ANSWERS = Section("plans", lambda fields: Answer(*fields))


def find_answer(question: Question, compute: Callable[[Question], Answer]) -> Answer:
    """The stored answer, or else that of `compute`, which is then stored."""
    if question.is_function:  # its code may call other files, of which nothing is known
        return compute(question)
    key = _key_of(question)
    answer = None if question.arguments.again or question.arguments.measure else _ANSWERS.get(key)
    if answer is None:
        answer = compute(question)
        _ANSWERS.put(key, answer)
    return answer


def _key_of(question: Question) -> str:
    """A key of the question's arguments, the files that it names, the course's code and the versions of the libraries."""
    arguments = question.arguments
    paths = [Path(path) for path in (question.model, arguments.teacher, arguments.data, arguments.explain) if path]
    files = [(path / "config.json" if path.is_dir() else path) for path in paths]
    texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (*files, *_code_files()) if path.is_file()]
    return hashlib.sha256(json.dumps([_canonical_arguments(question), texts, _versions()]).encode()).hexdigest()[:24]


def _canonical_arguments(question: Question) -> dict[str, str]:
    """The arguments, with models and cards by the course's names for them, and for a folder of data its files."""
    from course_utils import hardware, models

    values = vars(question.arguments) | {"model": question.model, "reading": question.reading}
    texts = {name: str(value) for name, value in sorted(values.items()) if name not in ("run", "json", "again")}
    for name, room in {"model": models, "teacher": models, "memory": hardware, "machine": hardware}.items():
        if values[name] and not Path(texts[name]).exists():
            texts[name] = room.canonical_name(texts[name])
    if values["data"]:  # by what tells one content from another without reading it
        files = ((path.name, path.stat()) for path in sorted(Path(values["data"]).glob("*")))
        texts["files of data"] = str([(name, status.st_size, status.st_mtime_ns) for name, status in files])
    return texts


def _code_files() -> list[Path]:
    """The course's code and its tables of tools, models and formulas, by which a later version may answer otherwise."""
    import course_utils

    code = Path(course_utils.__file__).parent
    return sorted(path for kind in ("py", "yaml", "txt", "j2", "zip") for path in code.rglob(f"*.{kind}"))


def _versions() -> list[str]:
    versions = []
    for package in ("torch", "transformers", "peft", "trl", "bitsandbytes"):
        with suppress(PackageNotFoundError):
            versions.append(version(package))
    return versions
