"""What a stored output must not give away: the machine it was made on, and warnings nobody meant to show."""

import getpass
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_REST = r"[^\s'\"<>]*"
_SLASH = r"[\\/]+"
_MACHINE_PATH = re.compile(
    rf"(?<![\w./:])/(?:home|root|Users|private|tmp|var|opt|srv|mnt|media|Volumes|content|kaggle)\b{_REST}"
    rf"|\b[A-Za-z]:{_SLASH}(?:Users|Windows|Program Files)\b{_REST}"
    rf"|\bfile:/{_REST}"
    rf"|{_REST}\bsite-packages\b{_REST}"
    rf"|{_REST}\bipykernel_\d+{_REST}"
)
_WARNING = re.compile(r"\b\w*Warning\b|\bWARNING\b|Traceback \(most recent call last\)")


def texts_of(output: dict) -> Iterator[str]:
    """Everything in an output that is text; images and other binary data are left out."""
    if output["output_type"] == "stream":
        yield _join(output["text"])
    if output["output_type"] == "error":
        yield "\n".join([output["ename"], output["evalue"], *output["traceback"]])
    for kind, content in output.get("data", {}).items():
        if kind.startswith("text/") or kind == "image/svg+xml":
            yield _join(content)


def machine_trace(text: str) -> str | None:
    """The first path, host name or user name in `text` that belongs to one machine, or None.

    Paths are those under the usual roots, and those of this checkout, Python, home and temporary folder wherever they lie.
    A host name counts as a whole word where it looks like one (`lab-3`, `box.local`), any other and the user's name only next to
    an `@`: a user may well be called `adam`.
    """
    match = _MACHINE_PATH.search(text) or next(filter(None, (folder.search(text) for folder in _own_folders())), None)
    if match:
        return match.group()
    return next((name for name in _own_names() if re.search(name, text)), None)


def stray_warning(text: str) -> str | None:
    """The first word in `text` that announces a warning or a traceback, or None."""
    match = _WARNING.search(text)
    return match.group() if match else None


def _own_folders() -> Iterator[re.Pattern]:
    """Patterns of this machine's folders that a text could name, with either slash, doubled or not."""
    for folder in (Path(__file__).parents[2], Path(sys.prefix), Path.home(), Path(tempfile.gettempdir())):
        if folder != Path(folder.anchor):
            path = _SLASH.join(map(re.escape, re.split(_SLASH, str(folder))))
            yield re.compile(rf"(?<![\w.]){path}(?![\w-]){_REST}")


def _own_names() -> Iterator[str]:
    host = socket.gethostname()
    telling = re.search(r"[\d.-]", host) and host not in ("localhost", "127.0.0.1")
    yield rf"(?<![\w-]){re.escape(host)}(?![\w-])" if telling else rf"@{re.escape(host)}\b"
    yield rf"\b{re.escape(_user())}@\w"


def _user() -> str:
    """The user's name, or NUL if unknown."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "\0"


def _join(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
