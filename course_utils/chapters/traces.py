"""What a stored output must not give away: the machine it was made on, and warnings nobody meant to show."""

import getpass
import re
import socket
from collections.abc import Iterator

_MACHINE_PATH = re.compile(
    r"(?<![\w./:])/(?:home|root|tmp|work|Users|mnt|opt|private/var|var/folders)\b[^\s'\"<>]*"
    r"|\b[A-Za-z]:\\+Users\b[^\s'\"<>]*"
    r"|[^\s'\"<>]*\bsite-packages\b[^\s'\"<>]*"
    r"|[^\s'\"<>]*\bipykernel_\d+[^\s'\"<>]*"
)
_WARNING = re.compile(r"\b\w*Warning\b|\bWARNING\b|Traceback \(most recent call last\)")


def texts_of(output: dict) -> Iterator[str]:
    """Everything in an output that is text; images and other binary data are left out."""
    if output["output_type"] == "stream":
        yield _joined(output["text"])
    if output["output_type"] == "error":
        yield "\n".join([output["ename"], output["evalue"], *output["traceback"]])
    for kind, content in output.get("data", {}).items():
        if kind.startswith("text/") or kind == "image/svg+xml":
            yield _joined(content)


def machine_trace(text: str) -> str | None:
    """The first path, host name or user name in `text` that belongs to one machine, or None.

    A host name counts as a whole word where it looks like one (`lab-3`, `box.local`), any other and the user's name only next to
    an `@`: a user may well be called `adam`.
    """
    found = _MACHINE_PATH.search(text)
    if found:
        return found.group()
    return next((name for name in _own_names() if re.search(name, text)), None)


def stray_warning(text: str) -> str | None:
    """The first word in `text` that announces a warning or a traceback, or None."""
    found = _WARNING.search(text)
    return found.group() if found else None


def _own_names() -> Iterator[str]:
    host = socket.gethostname()
    telling = re.search(r"[\d.-]", host) and host not in ("localhost", "127.0.0.1")
    yield rf"(?<![\w-]){re.escape(host)}(?![\w-])" if telling else rf"@{re.escape(host)}\b"
    yield rf"\b{re.escape(_user())}@\w"


def _user() -> str:
    """The user's name, or one that no text contains where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "\0"


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
