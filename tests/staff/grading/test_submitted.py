"""Which files of a folder are a class's."""

from course_staff.grading.submitted import find_submissions


def test_what_a_mac_or_jupyter_lays_beside_notebooks_is_nobodys(tmp_path):
    for name in ("ann", "._ann", "__MACOSX/._ann", "__MACOSX/ann", "bo/x", "bo/.ipynb_checkpoints/x", "bo/__MACOSX/y"):
        path = tmp_path / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    assert [*find_submissions(tmp_path)] == ["ann", "bo/x"]
