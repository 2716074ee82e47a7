"""Answers of `course plan`, stored by all that they depend on."""

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
    values: object
    code: int


_ANSWERS = Section("plans", lambda stored: Answer(*stored))


def recall(question: Question, work_out: Callable[[Question], Answer]) -> Answer:
    """The answer as it is stored, or else worked out and stored."""
    key = _key_of(question)
    answer = None if question.arguments.again or question.arguments.measure else _ANSWERS.get(key)
    if answer is None:
        answer = work_out(question)
        _ANSWERS.put(key, answer)
    return answer


def _key_of(question: Question) -> str:
    """The key of the answer to just this question.

    By its words, with models and cards by the names that they have here, what its files and the course's code hold, and the
    versions of the libraries.
    """
    import course_utils
    from course_utils import hardware, models

    arguments = question.arguments
    values = vars(arguments) | {"model": question.model, "reading": question.reading}
    words = {name: str(value) for name, value in sorted(values.items()) if name not in ("run", "json", "again")}
    for name, room in {"model": models, "teacher": models, "memory": hardware, "machine": hardware}.items():
        if values[name] and not Path(words[name]).exists():
            words[name] = room.known_as(words[name])
    files = [Path(path) for path in (question.model, arguments.teacher, arguments.data, arguments.explain) if path]
    if arguments.data:  # of a folder what tells one content from another without reading it
        inside = ((path.name, path.stat()) for path in sorted(Path(arguments.data).glob("*")))
        words["files of data"] = str([(name, status.st_size, status.st_mtime_ns) for name, status in inside])
    files = [(path / "config.json" if path.is_dir() else path) for path in files]
    code = Path(course_utils.__file__).parent
    # A later version of the course may answer otherwise, also by its tables of tools, models and formulas.
    files += sorted(path for kind in ("py", "yaml", "txt", "j2", "zip") for path in code.rglob(f"*.{kind}"))
    texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()]
    versions = []
    for package in ("torch", "transformers", "peft", "trl", "bitsandbytes"):
        with suppress(PackageNotFoundError):
            versions.append(version(package))
    return hashlib.sha256(json.dumps([words, texts, versions]).encode()).hexdigest()[:24]
