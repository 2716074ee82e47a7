"""The document into which the benchmarks write; what their clock reads is not tested."""

import re
from statistics import median

import pytest

from benchmarks import document

MARKED = "before\n<!-- written by benchmarks/a.py -->\nold\n<!-- end of what benchmarks/a.py writes -->\nafter\n"


def test_only_what_stands_between_the_marks_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "page.md")
    document.DOCUMENT.write_text(MARKED)
    document.write("a.py", "new")
    assert document.DOCUMENT.read_text() == MARKED.replace("\nold\n", "\n\nnew\n\n")


@pytest.mark.parametrize(
    "missing", ["<!-- written by benchmarks/a.py -->", "<!-- end of what benchmarks/a.py writes -->"]
)
def test_a_page_without_its_marks_is_left_as_it_is(missing, tmp_path, monkeypatch):
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "page.md")
    document.DOCUMENT.write_text(MARKED.replace(missing, ""))
    with pytest.raises(SystemExit, match="lacks the line"):
        document.write("a.py", "new")
    assert document.DOCUMENT.read_text() == MARKED.replace(missing, "")


PAGE = document.DOCUMENT.read_text(encoding="utf-8")
SUMMARY = " ".join(PAGE.partition("\n## ")[0].split())


def rows(begin: str, column: int) -> list[str]:
    """A column of every table from the line `begin` on, up to where the program's part or the section ends."""
    part = re.split(r"<!-- end of|\n#+ ", PAGE.split(begin)[1])[0]
    cells = [line.strip("| ").split(" | ") for line in part.splitlines() if re.match(r"\| [^-|]", line)]
    return [cell[column] for cell in cells if len(cell) > column]


def percents(texts: list[str]) -> list[float]:
    return [float(text.rstrip("%")) for text in texts if re.fullmatch(r"[+-][\d.]+%", text)]


def test_the_document_begins_with_what_its_tables_of_a_gpu_say():
    ours, theirs = percents(rows("benchmarks/gpu.py -->", 3)), percents(rows("benchmarks/published.py -->", 5))
    assert (len(ours), len(theirs)) == (8, 6)
    assert max(ours) <= 0
    assert f"All eight predictions were too low, by {-min(ours):.2f} % at most" in SUMMARY
    assert f"{-max(theirs):.1f} to {-min(theirs):.1f} % below six peaks" in SUMMARY
    sheet, measured = (
        [float(one.removesuffix(" ms")) for one in rows("### Seconds on an H200", column)[1:]] for column in (2, 3)
    )
    assert len(sheet) == 3
    ratios = [truth / predicted for predicted, truth in zip(sheet, measured, strict=True)]
    assert f"took {min(ratios):.1f} to {max(ratios):.0f} times as long" in SUMMARY


def test_the_document_begins_with_what_its_tables_of_a_cpu_say():
    counts, largest = rows("benchmarks/memory.py -->", 1), rows("benchmarks/memory.py -->", 4)
    assert len(counts) == 5
    assert f"in all {sum(map(int, counts))} steps" in SUMMARY
    most = max(float(one.split(", ")[1].rstrip("%")) for one in largest)
    assert f"within {most:.2f} % of the allocator's own record" in SUMMARY
    wrong = [abs(one) for one in percents(rows("benchmarks/seconds.py -->", 3))]
    assert (
        f"of {len(wrong)} steps are wrong by {median(wrong):.1f} % in the median, and by {max(wrong):.1f} % at worst"
        in SUMMARY
    )
