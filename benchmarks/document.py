"""docs/accuracy.md, as far as programs write it."""

from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "accuracy.md"


def write(author: str, text: str) -> None:
    """Replace what stands between the marks of `author`, a file of this folder."""
    begin, end = f"<!-- written by benchmarks/{author} -->", f"<!-- end of what benchmarks/{author} writes -->"
    before, begin_mark, rest = DOCUMENT.read_text(encoding="utf-8").partition(begin)
    _, end_mark, after = rest.partition(end)
    if not (begin_mark and end_mark):
        raise SystemExit(f"{DOCUMENT} lacks the line {end if begin_mark else begin}; put both where the text belongs.")
    DOCUMENT.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
