"""The `config.json` of a model on the Hub, from the local cache or else from the Hub. No code of the model is run."""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from course_utils.errors import CourseError
from course_utils.memory.planning.reading.fields import PublishedFacts
from course_utils.models import NAMES, PUBLIC, canonical_name
from course_utils.settings import settings, variables

TIMEOUT = 3.0
"""Seconds to wait for an answer of the Hub."""
_ID = re.compile(r"([\w-][\w.-]*/)?[\w-][\w.-]*")
# The most bytes of a config.json that are read.
_MAX_BYTES = 2**20
# Below this, names are different: SmolLM2-135M is no misspelled llama-2-13b.
_MIN_SIMILARITY = 0.85
# Dtypes of named models' weights, by the beginnings of their names; those of the others are in bfloat16.
_OLD_DTYPES = {"llama-2-": "float16", "gpt2-": "float32", "bert-": "float32"}


def find_model(name: str) -> str:
    """`name` if it is a path or a name that is known here, else the path of the `config.json` with that name on the Hub.

    Raises `CourseError`, with the reason and a similar name, if the Hub's file cannot be had.
    """
    if not _ID.fullmatch(name) or name.endswith(".json") or Path(name).exists():
        return name
    if canonical_name(name) in NAMES:
        return name
    if (cached := _find_in_cache(name)) is not None:
        return str(cached)
    hubs = [public.hub.lower() for public in PUBLIC.values()]
    # A tuned model has the sizes of its base model.
    plain = re.sub(r"-(instruct|chat|it|base)(?=-|$)", "", name.lower())
    matches = (get_close_matches(text, hubs, 1, _MIN_SIMILARITY) for text in (name.lower(), plain))
    advice = "give the path of its config.json, or of a folder that has one"
    advice += next((f"; or did you mean {canonical_name(match[0])}?" for match in matches if match), ".")
    if variables("HF_HUB_OFFLINE").get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise CourseError(f"{name} is not in the local cache, and HF_HUB_OFFLINE forbids to ask the Hub; {advice}")
    path = settings().home / "hub" / name.replace("/", "--") / "config.json"
    if not path.is_file():
        text = _download(name, advice)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(path)


def _find_in_cache(name: str) -> Path | None:
    environment = variables("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
    caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(environment.get("HF_HOME") or caches / "huggingface")
    hub = Path(environment.get("HF_HUB_CACHE") or home / "hub").expanduser()
    folder = hub / f"models--{name.replace('/', '--')}"
    main = folder / "refs" / "main"
    commits = [main.read_text(encoding="utf-8").strip()] if main.is_file() else []
    commits += sorted(path.name for path in (folder / "snapshots").glob("*"))
    paths = (folder / "snapshots" / commit / "config.json" for commit in commits)
    return next((path for path in paths if path.is_file()), None)


def _download(name: str, advice: str) -> str:
    environment = variables("HF_ENDPOINT", "HF_TOKEN")
    address = f"{environment.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/{name}/resolve/main/config.json"
    headers = {"Authorization": f"Bearer {environment['HF_TOKEN']}"} if environment.get("HF_TOKEN") else {}
    replies: list[str | Exception] = []

    def look_up() -> None:
        try:
            with urlopen(Request(address, headers=headers), timeout=TIMEOUT) as response:
                text = response.read(_MAX_BYTES).decode("utf-8")
            replies.append(text if isinstance(json.loads(text), dict) else ValueError("no JSON object"))
        except (OSError, ValueError) as error:
            replies.append(error)

    asking = Thread(target=look_up, daemon=True)  # an address that does not resolve would take longer than `timeout`
    asking.start()
    asking.join(TIMEOUT)
    reply = replies[0] if replies else TimeoutError("no answer")
    if isinstance(reply, str):
        return reply
    code = reply.code if isinstance(reply, HTTPError) else None
    if code in (401, 403):
        raise CourseError(
            f"{name} is gated, private or not on the Hub; accept its terms there and set HF_TOKEN, or {advice}"
        )
    if code == 404:
        raise CourseError(f"The Hub has no config.json of {name}; {advice}")
    reason = reply.reason if isinstance(reply, URLError) else reply
    raise CourseError(
        f"{name} is not known here and not in the local cache, and the Hub did not answer in {TIMEOUT:.0f} s ({reason}); {advice}"
    )


def describe(name: str) -> PublishedFacts:
    """The facts about a model that `find_model` found; all are None if it is no configuration."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if path.suffix == ".json" and path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            inner = config.get("text_config") or {}
            architecture = next(iter(config.get("architectures") or []), None)
            method = (config.get("quantization_config") or {}).get("quant_method")
            dtypes = [part.get(key) for part in (config, inner) for key in ("dtype", "torch_dtype")]
            dtype = next((str(name) for name in dtypes if name), "float32")
            return PublishedFacts(config.get("model_type"), dtype, method, architecture)
        except (OSError, ValueError, AttributeError):
            return PublishedFacts()  # whoever reads the file next says what is wrong
    public = canonical_name(name)
    if public not in PUBLIC:
        return PublishedFacts()
    architecture = PUBLIC[public].architecture
    family = re.sub(r"(For|LM|Model).*", "", architecture).lower()
    dtype = next((dtype for begin, dtype in _OLD_DTYPES.items() if public.startswith(begin)), "bfloat16")
    return PublishedFacts(family, dtype, None, architecture)
