"""Saves the states of a notebook's widgets, including those of an earlier kernel, which JupyterLab would lose."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_server.services.contents.manager import ContentsManager

_STATE, _VIEW = "application/vnd.jupyter.widget-state+json", "application/vnd.jupyter.widget-view+json"


def keep(model: dict, path: str, contents_manager: "ContentsManager", **_) -> None:
    """Before the server saves a notebook, add the states of widgets that it shows and that only its file still has.

    JupyterLab forgets them when a notebook that was opened again gets a new kernel.
    """
    if model.get("type") != "notebook" or not model.get("content"):
        return
    content = model["content"]
    # The file may not be there yet, or be no notebook.
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        states = _states(content)
        saved_states = _states(json.loads((Path(contents_manager.root_dir) / path.strip("/")).read_text("utf-8")))
        missing = {}
        pending = list(_models_in(content) - states.keys())
        while pending:  # these, and their parts: a state names others as `IPY_MODEL_` and their id
            if (name := pending.pop()) in saved_states and name not in missing:
                missing[name] = saved_states[name]
                pending += re.findall(r"IPY_MODEL_([\w-]+)", json.dumps(saved_states[name]))
        if missing:
            version = {"version_major": 2, "version_minor": 0}
            content.setdefault("metadata", {})["widgets"] = {_STATE: {"state": {**missing, **states}, **version}}


def _states(notebook: dict) -> dict[str, dict]:
    return notebook.get("metadata", {}).get("widgets", {}).get(_STATE, {}).get("state", {})


def _models_in(notebook: dict) -> set[str]:
    """The ids of widget models whose view is in an output."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    views = (output.get("data", {}).get(_VIEW) for output in outputs)
    return {view["model_id"] for view in views if view}
