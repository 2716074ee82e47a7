"""What a save of JupyterLab keeps of boxes, by the server's own contents manager: the file afterwards is the oracle."""

import asyncio

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

STATE, VIEW = "application/vnd.jupyter.widget-state+json", "application/vnd.jupyter.widget-view+json"
BOX = {"model_name": "BoundedFloatTextModel", "state": {"layout": "IPY_MODEL_layout-1", "value": 70.0}}
STATES = {"box": BOX, "layout-1": {"model_name": "LayoutModel", "state": {}}, "other": {"model_name": "x", "state": {}}}


def notebook(states, shows=("box",)):
    outputs = [nbformat.v4.new_output("display_data", {VIEW: {"model_id": name}}) for name in shows]
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("bet()", outputs=outputs)])
    if states:
        content.metadata["widgets"] = {STATE: {"state": states, "version_major": 2, "version_minor": 0}}
    return content


@pytest.fixture
def save(tmp_path):
    """Saves a notebook as the server that `course lab` starts does, and gives the states in the file."""
    manager = AsyncLargeFileManager(root_dir=str(tmp_path), pre_save_hook="course_utils.desk.widget_states.keep")

    def save(content):
        asyncio.run(manager.save({"type": "notebook", "format": "json", "content": content}, "a/b.ipynb"))
        saved = nbformat.read(tmp_path / "a" / "b.ipynb", as_version=4)
        nbformat.validate(saved)
        return saved.metadata.get("widgets", {}).get(STATE, {}).get("state", {})

    (tmp_path / "a").mkdir()
    return save


def test_a_widget_that_is_still_shown_is_kept_with_its_parts_and_no_other(save):
    assert save(notebook(STATES)) == STATES
    for _ in range(2):
        assert save(notebook({})) == {name: STATES[name] for name in ("box", "layout-1")}


def test_what_jupyterlab_knows_itself_is_saved_as_it_says(save):
    save(notebook(STATES))
    states = {"box": {**BOX, "state": {"value": 60.0}}}
    assert save(notebook(states)) == states


def test_of_a_box_that_is_no_longer_shown_nothing_is_kept(save):
    save(notebook(STATES))
    assert save(notebook({}, shows=())) == {}


def test_a_new_notebook_and_one_whose_box_no_file_knows_are_saved_as_they_are(save):
    assert save(notebook({})) == {}
    assert save(notebook({}, shows=("box", "new"))) == {}
