"""A model by its name on the Hub: its `config.json` from the local cache, else from the Hub itself. No code of it is run."""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from course_utils.errors import CourseError
from course_utils.memory.reading.fields import Model
from course_utils.settings import settings, variables

SECONDS = 3.0
"""How long an answer of the Hub is waited for."""
_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LARGEST = 2**20  # bytes of a config.json
_LEAST_ALIKE = 0.85  # SmolLM2-135M is no misspelled llama-2-13b
_FLOAT16 = ("llama-2-", "pythia")
_FLOAT32 = ("gpt2-", "bert-")


def find_model(name: str) -> str:
    """`name` where it is a path or a name that is known here, else the path of the `config.json` of that name on the Hub.

    Raises `CourseError` where it is a name on the Hub that cannot be looked up, which says why and what is near.
    """
    from course_utils.models import NAMES, PUBLIC, known_as

    if Path(name).exists() or not _ID.fullmatch(name) or known_as(name) in NAMES:
        return name
    if (cached := _find_in_cache(name)) is not None:
        return str(cached)
    near = get_close_matches(name.lower(), (public.hub.lower() for public in PUBLIC.values()), 1, _LEAST_ALIKE)
    meant = f" Do you mean {known_as(near[0])}?" if near else ""
    own = "give the path of its config.json, or of a folder that has one"
    if any(variables(word).get(word, "").lower() in ("1", "true", "yes", "on") for word in ("HF_HUB_OFFLINE",)):
        raise CourseError(f"{name} is not in the local cache, and HF_HUB_OFFLINE forbids to ask the Hub; {own}.{meant}")
    text = _ask(name, own, meant)
    folder = settings().home / "hub" / name.replace("/", "--")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _find_in_cache(name: str) -> Path | None:
    said = variables("HF_", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")
    home = Path(said.get("HF_HOME") or Path(said.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    hub = Path(said.get("HF_HUB_CACHE") or said.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser()
    folder = hub / f"models--{name.replace('/', '--')}"
    main = folder / "refs" / "main"
    first = [main.read_text(encoding="utf-8").strip()] if main.is_file() else []
    others = sorted(path.name for path in (folder / "snapshots").glob("*"))
    paths = (folder / "snapshots" / commit / "config.json" for commit in [*first, *others])
    return next((path for path in paths if path.is_file()), None)


def _ask(name: str, own: str, meant: str) -> str:
    said = variables("HF_ENDPOINT", "HF_TOKEN")
    address = f"{said.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{name}/resolve/main/config.json"
    headers = {"Authorization": f"Bearer {said['HF_TOKEN']}"} if said.get("HF_TOKEN") else {}
    answer: list[str | Exception] = []

    def look_up() -> None:
        try:
            with urlopen(Request(address, headers=headers), timeout=SECONDS) as response:  # noqa: S310, https or one's own mirror
                answer.append(response.read(_LARGEST).decode("utf-8"))
        except (OSError, ValueError) as error:
            answer.append(error)

    asking = Thread(target=look_up, daemon=True)  # a name that does not resolve would wait longer than its own limit
    asking.start()
    asking.join(SECONDS)
    found = answer[0] if answer else TimeoutError()
    if isinstance(found, str):
        try:
            if not isinstance(json.loads(found), dict):
                raise ValueError
        except ValueError:
            raise CourseError(f"The config.json of {name} on the Hub is no JSON object; {own}.") from None
        return found
    if isinstance(found, HTTPError) and found.code in (401, 403):
        raise CourseError(
            f"{name} is gated, private or not on the Hub: accept its terms there and set HF_TOKEN, or {own}.{meant}"
        )
    if isinstance(found, HTTPError) and found.code == 404:
        raise CourseError(f"The Hub has no config.json of {name}; {own}.{meant}")
    why = f"error {found.code}" if isinstance(found, HTTPError) else "no answer"
    why = str(found.reason) if isinstance(found, URLError) and not isinstance(found, HTTPError) else why
    raise CourseError(
        f"{name} is not known here nor in the local cache, and the Hub gave {why} in {SECONDS:.0f} s; {own}.{meant}"
    )


def describe(name: str | None) -> Model:
    """What the settings need to know of a model that `find_model` found; nothing where it is no configuration."""
    if name is None:
        return Model()
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if path.suffix == ".json" and path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            text = found.get("text_config") or {}
            dtype = found.get("dtype") or found.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
            return Model(found.get("model_type"), str(dtype).removeprefix("torch.") if dtype else "float32")
        except (OSError, ValueError, AttributeError):
            return Model()
    from course_utils.models import PUBLIC, known_as

    known = known_as(name)
    if known not in PUBLIC:
        return Model()
    family = re.sub(r"(For|LM|Model).*", "", PUBLIC[known].architecture).lower()
    return Model(
        family, "float16" if known.startswith(_FLOAT16) else "float32" if known.startswith(_FLOAT32) else "bfloat16"
    )
