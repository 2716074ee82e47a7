"""Stored answers of `course plan`, by a key of everything on which they depend."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from course_utils.cli.planning.question import Question
from course_utils.settings import settings
from course_utils.store import Section


class Answer(NamedTuple):
    """An answer's text, its content as plain values, and the exit code."""

    text: str
    values: dict | list
    code: int


_ANSWERS = Section("plans", lambda fields: Answer(*fields))


def find_answer(question: Question, compute: Callable[[Question], Answer]) -> Answer:
    """The stored answer to `question`, or else that of `compute`, which is then stored."""
    if question.is_function:  # its code may use files that are not in the key
        return compute(question)
    key = _key_of(question)
    answer = None if question.arguments.again or question.arguments.measure else _ANSWERS.get(key)
    if answer is None:
        answer = compute(question)
        _ANSWERS.put(key, answer)
    return answer


def _key_of(question: Question) -> str:
    """A hash of the question's arguments, of the files that it names, of the course's code and of the libraries' versions."""
    arguments = question.arguments
    paths = [Path(path) for path in (question.model, arguments.teacher, arguments.data, arguments.explain) if path]
    files = [(path / "config.json" if path.is_dir() else path) for path in paths]
    texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (*files, *_code_files()) if path.is_file()]
    return hashlib.sha256(json.dumps([_canonical_arguments(question), texts, _versions()]).encode()).hexdigest()[:24]


def _canonical_arguments(question: Question) -> dict[str, str]:
    """The arguments as texts: models and cards by the course's names, own models with their scale, a folder with its files."""
    from course_utils import hardware, models

    values = vars(question.arguments) | {"model": question.model, "reading": question.reading}
    texts = {name: str(value) for name, value in sorted(values.items()) if name not in ("run", "json", "again")}
    for name, room in {"model": models, "teacher": models, "memory": hardware, "machine": hardware}.items():
        if values[name] and not Path(texts[name]).exists():
            texts[name] = room.canonical_name(texts[name])
    if {texts["model"], texts["teacher"]} & set(models.FAMILIES):
        texts["scale"] = settings().scale.name
    if values["data"]:  # by names, sizes and times, so that they need not be read
        files = ((path.name, path.stat()) for path in sorted(Path(values["data"]).glob("*")))
        texts["files of data"] = str([(name, status.st_size, status.st_mtime_ns) for name, status in files])
    return texts


def _code_files() -> list[Path]:
    """The files of the course's code, tables and formulas, with which another version may answer differently."""
    import course_utils

    code = Path(course_utils.__file__).parent
    return sorted(path for kind in ("py", "yaml", "txt", "j2", "zip") for path in code.rglob(f"*.{kind}"))


def _versions() -> list[str]:
    versions = []
    for package in ("torch", "transformers", "peft", "trl", "bitsandbytes"):
        with suppress(PackageNotFoundError):
            versions.append(version(package))
    return versions
