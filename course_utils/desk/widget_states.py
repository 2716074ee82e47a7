"""What JupyterLab saves of a notebook's boxes and figures to play with: those of its kernel, and of no earlier one."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_server.services.contents.manager import ContentsManager

_STATE, _VIEW = "application/vnd.jupyter.widget-state+json", "application/vnd.jupyter.widget-view+json"


def keep(model: dict, path: str, contents_manager: "ContentsManager", **_) -> None:
    """Put into the notebook, before the server saves it, the state of each box that it still shows and JupyterLab no longer
    knows, as the file has it.

    JupyterLab forgets them when a notebook that was opened again gets a new kernel, and would save none.
    """
    if model.get("type") != "notebook" or not model.get("content"):
        return
    content = model["content"]
    # The file may not be there yet, or be no notebook.
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        states = _states(content)
        before = _states(json.loads((Path(contents_manager.root_dir) / path.strip("/")).read_text("utf-8")))
        ahead, lost = list(_models_in(content) - states.keys()), {}
        while ahead:  # these, and all that they are made of: a state names others as `IPY_MODEL_` and their id
            if (name := ahead.pop()) in before and name not in lost:
                lost[name] = before[name]
                ahead += re.findall(r"IPY_MODEL_([\w-]+)", json.dumps(before[name]))
        if lost:
            version = {"version_major": 2, "version_minor": 0}
            content.setdefault("metadata", {})["widgets"] = {_STATE: {"state": {**lost, **states}, **version}}


def _states(notebook: dict) -> dict[str, dict]:
    return notebook.get("metadata", {}).get("widgets", {}).get(_STATE, {}).get("state", {})


def _models_in(notebook: dict) -> set[str]:
    """The models whose view is in an output."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    views = (output.get("data", {}).get(_VIEW) for output in outputs)
    return {view["model_id"] for view in views if view}
