"""The document into which the benchmarks write; what their clock reads is not tested."""

import pytest

from benchmarks import document

DOCUMENT = "before\n<!-- written by benchmarks/a.py -->\nold\n<!-- end of what benchmarks/a.py writes -->\nafter\n"


def test_only_what_stands_between_the_marks_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "page.md")
    document.DOCUMENT.write_text(DOCUMENT)
    document.write("a.py", "new")
    assert document.DOCUMENT.read_text() == DOCUMENT.replace("\nold\n", "\n\nnew\n\n")


@pytest.mark.parametrize(
    "missing", ["<!-- written by benchmarks/a.py -->", "<!-- end of what benchmarks/a.py writes -->"]
)
def test_a_page_without_its_marks_is_left_as_it_is(missing, tmp_path, monkeypatch):
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "page.md")
    document.DOCUMENT.write_text(DOCUMENT.replace(missing, ""))
    with pytest.raises(SystemExit, match="lacks the line"):
        document.write("a.py", "new")
    assert document.DOCUMENT.read_text() == DOCUMENT.replace(missing, "")
