"""What makes a notebook a chapter of this course, rule by rule.

A rule takes a `Chapter` and yields a `Violation` for everything that breaks it. `violations_in` applies them all.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from course_utils.chapters import markdown, setup_cell, traces
from course_utils.chapters.files import read_notebook

SECTIONS = (
    "Cost before",
    "The idea in one picture",
    "By hand",
    "With PyTorch, Accelerate and Trainer",
    "Measure",
    "When it fails",
    "Play",
    "Summary",
)
MOST_WORDS = 2_500
USUAL_LINES, MOST_LINES, LONG_SHARE = 10, 15, 0.1
STORED_SCALE = "laptop"


@dataclass(frozen=True)
class Violation:
    """A broken rule; `cell` counts from 1 and is 0 where the whole notebook is meant."""

    chapter: str
    cell: int
    remark: str

    def __str__(self) -> str:
        place = f"{self.chapter}, cell {self.cell}" if self.cell else self.chapter
        return f"{place}: {self.remark}"


@dataclass(frozen=True)
class Chapter:
    """A notebook with its place; `address` is the one its set-up cell should fetch from."""

    path: Path
    notebook: dict[str, Any]
    address: str | None = field(default=None)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @cached_property
    def cells(self) -> list[tuple[int, dict]]:
        """Every cell with its number, from 1."""
        return list(enumerate(self.notebook["cells"], start=1))

    @cached_property
    def code(self) -> list[tuple[int, dict]]:
        """The code cells with their numbers."""
        return [(number, cell) for number, cell in self.cells if cell["cell_type"] == "code"]

    @cached_property
    def prose(self) -> list[tuple[int, str]]:
        """The text of the Markdown cells with their numbers."""
        return [(number, cell["source"]) for number, cell in self.cells if cell["cell_type"] == "markdown"]

    @cached_property
    def headings(self) -> list[tuple[int, markdown.Heading]]:
        """Every heading with its cell's number."""
        return [(number, heading) for number, text in self.prose for heading in markdown.headings(text)]

    @cached_property
    def course_metadata(self) -> dict[str, Any]:
        """What the notebook says about itself to the course."""
        return self.notebook["metadata"].get("course", {})

    def says(self, cell: int, remark: str) -> Violation:
        """A violation in this chapter."""
        return Violation(self.name, cell, remark)


Rule = Callable[[Chapter], Iterator[Violation]]


def violations_in(path: Path, address: str | None = None) -> list[Violation]:
    """Everything in the notebook at `path` that breaks a rule; raises `CourseError` where it is not a notebook."""
    chapter = Chapter(Path(path), read_notebook(path), address)
    broken = list(_is_well_formed(chapter))
    return broken or [violation for rule in RULES for violation in rule(chapter)]


def _is_well_formed(chapter: Chapter) -> Iterator[Violation]:
    """The notebook format itself, cell ids included; without it no other rule can be applied."""
    import nbformat

    ids = [cell.get("id") for cell in chapter.notebook["cells"]]
    if None in ids or chapter.notebook["nbformat_minor"] < 5:
        yield chapter.says(0, "it has cells without an id; save it as notebook format 4.5 or later.")
        return
    for number, (cell_id, earlier) in enumerate(zip(ids, _prefixes(ids), strict=True), start=1):
        if cell_id in earlier:
            yield chapter.says(
                number, f"its id {cell_id!r} is that of cell {earlier.index(cell_id) + 1} too; give it one of its own."
            )
            return
    try:
        nbformat.validate(chapter.notebook)
    except nbformat.ValidationError as error:
        yield chapter.says(
            0, f"it is not a valid notebook ({str(error).splitlines()[0]}); save it again from JupyterLab."
        )


def _prefixes(items: list) -> list[list]:
    return [items[:count] for count in range(len(items))]


def title_and_aims(chapter: Chapter) -> Iterator[Violation]:
    """The first cell: a title, three aims, the minutes."""
    first = chapter.notebook["cells"][0] if chapter.notebook["cells"] else None
    if first is None or first["cell_type"] != "markdown" or not first["source"].startswith("# "):
        yield chapter.says(
            1, "the chapter must begin with a Markdown cell that begins with its title, as in '# AdamW'."
        )
        return
    aims = re.findall(r"^[-*] ", first["source"], re.MULTILINE)
    if len(aims) != 3:
        yield chapter.says(
            1, f"what the reader will be able to do takes three lines that begin with '- ', not {len(aims)}."
        )
    if not re.search(r"^\*\*Time:\*\* about \d+ minutes", first["source"], re.MULTILINE):
        yield chapter.says(1, "add a line that says how long the chapter takes, as in '**Time:** about 30 minutes'.")


def set_up(chapter: Chapter) -> Iterator[Violation]:
    """The second cell is the set-up cell, as the course has it today, and it is the only one."""
    tagged = [number for number, cell in chapter.code if setup_cell.is_setup(cell)]
    if tagged != [2]:
        yield chapter.says(2, "the second cell must be the set-up cell, and it alone must carry the tag 'setup'.")
    elif chapter.notebook["cells"][1]["source"] != setup_cell.setup_source(chapter.address):
        yield chapter.says(2, "the set-up cell is not today's; run `course stamp`.")


def sections(chapter: Chapter) -> Iterator[Violation]:
    """The sections in their order, each once, less those that are waived."""
    found = [(number, heading.text) for number, heading in chapter.headings if heading.level == 2]
    waived = chapter.course_metadata.get("waived", {})
    yield from _waivers(chapter, waived, {text for _, text in found})
    for number, text in found:
        if text not in SECTIONS:
            yield chapter.says(
                number, f"'## {text}' is not a section of a chapter; make it '### {text}' or use a section's name."
            )
    names = [text for _, text in found]
    for name in SECTIONS:
        if names.count(name) > 1:
            yield chapter.says(0, f"the section '## {name}' comes more than once; join them or use '###'.")
        elif name not in names and name not in waived:
            yield chapter.says(
                0, f"the section '## {name}' is missing; write it, or waive it with a reason in the metadata."
            )
    order = [name for name in dict.fromkeys(names) if name in SECTIONS]
    if order != sorted(order, key=SECTIONS.index):
        yield chapter.says(0, f"the sections come in the wrong order; put them in this one: {', '.join(SECTIONS)}.")


def _waivers(chapter: Chapter, waived: dict[str, str], present: set[str]) -> Iterator[Violation]:
    for name, reason in waived.items():
        if name not in SECTIONS:
            yield chapter.says(0, f"it waives {name!r}, which is not a section; correct the name in the metadata.")
        elif name in present:
            yield chapter.says(0, f"it waives '## {name}' and has it all the same; remove the waiver.")
        elif not str(reason).strip():
            yield chapter.says(0, f"it waives '## {name}' without saying why; give the reason in the metadata.")


def summary(chapter: Chapter) -> Iterator[Violation]:
    """Five numbered lines, questions, sources, and the exercises where there are any."""
    text = _section_text(chapter, "Summary")
    if text is None:
        return
    last = chapter.cells[-1][0]
    lines = re.findall(r"^\d+\. ", text.split("\n### ")[0], re.MULTILINE)
    if len(lines) != 5:
        yield chapter.says(last, f"the summary takes five numbered lines, not {len(lines)}.")
    names = [heading.text for heading in markdown.headings(text) if heading.level == 3]
    for name in ("Questions", "Sources"):
        if name not in names:
            yield chapter.says(last, f"the summary needs a part '### {name}'.")
    if [name for name in names if name in ("Questions", "Sources")] == ["Sources", "Questions"]:
        yield chapter.says(last, "in the summary, '### Questions' comes before '### Sources'.")
    yield from _exercise_link(chapter, text, last)


def _exercise_link(chapter: Chapter, text: str, cell: int) -> Iterator[Violation]:
    exercise = f"../exercises/{chapter.name}"
    linked = any(link.target == exercise for link in markdown.links(text))
    if (chapter.path.parent / exercise).is_file() and not linked:
        yield chapter.says(cell, f"the summary must link to the exercises: {exercise}.")


def _section_text(chapter: Chapter, name: str) -> str | None:
    """All prose from the section's heading to the next one of its level, or None without the section."""
    text = "\n".join(source for _, source in chapter.prose)
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(name)


def length_of_prose(chapter: Chapter) -> Iterator[Violation]:
    """A chapter is read in one sitting."""
    words = sum(markdown.count_words(text) for _, text in chapter.prose)
    if words >= MOST_WORDS:
        yield chapter.says(0, f"its prose has {words:,} words; bring it under {MOST_WORDS:,}.")


def length_of_code(chapter: Chapter) -> Iterator[Violation]:
    """A cell shows one thing: few lines, counted without blank ones and comments."""
    lengths = {number: _lines_of_code(cell["source"]) for number, cell in chapter.code}
    for number, lines in lengths.items():
        if lines > MOST_LINES:
            yield chapter.says(
                number, f"the cell has {lines} lines of code; split it so that none has more than {MOST_LINES}."
            )
    long = [number for number, lines in lengths.items() if USUAL_LINES < lines <= MOST_LINES]
    if len(long) > LONG_SHARE * len(lengths):
        share = f"{len(long)} of {len(lengths)} code cells have more than {USUAL_LINES} lines"
        yield chapter.says(long[0], f"{share}, this one first; shorten them until at most one in ten has.")


def _lines_of_code(source: str) -> int:
    lines = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def no_empty_cells(chapter: Chapter) -> Iterator[Violation]:
    """An empty cell is left over, unless a tag says what it is for."""
    for number, cell in chapter.cells:
        if not cell["source"].strip() and not cell["metadata"].get("tags"):
            yield chapter.says(number, "the cell is empty; delete it, or tag it where it is meant.")


def executed_in_order(chapter: Chapter) -> Iterator[Violation]:
    """The stored outputs are those of one run from top to bottom, at the scale the prose speaks of."""
    runnable = [(number, cell) for number, cell in chapter.code if cell["source"].strip()]
    for position, (number, cell) in enumerate(runnable, start=1):
        if cell["execution_count"] != position:
            count = cell["execution_count"]
            remark = (
                "was not executed"
                if count is None
                else f"was executed as number {count} where it is code cell {position}"
            )
            yield chapter.says(number, f"the cell {remark}; run `course run --save`.")
            break
    if chapter.course_metadata.get("scale") != STORED_SCALE:
        yield chapter.says(
            0, f"its outputs are not marked as those of the {STORED_SCALE} scale; run `course run --save`."
        )


def kernel(chapter: Chapter) -> Iterator[Violation]:
    """Any reader's kernel fits."""
    if chapter.notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield chapter.says(0, "its kernel must be python3; run `course run --save`.")


def clean_outputs(chapter: Chapter) -> Iterator[Violation]:
    """No error, no warning, nothing of the machine that made the outputs."""
    for number, cell in chapter.code:
        tags = cell["metadata"].get("tags", [])
        for output in cell["outputs"]:
            if not {"raises-exception", "stderr-expected"}.intersection(tags):
                yield from _no_trouble(chapter, number, output)
            yield from _no_machine(chapter, number, output)


def _no_trouble(chapter: Chapter, number: int, output: dict) -> Iterator[Violation]:
    if output["output_type"] == "error":
        yield chapter.says(number, f"the cell failed with {output['ename']}; mend it, or tag it 'raises-exception'.")
    elif output.get("name") == "stderr":
        yield chapter.says(number, "the cell wrote to stderr; silence the cause, or tag the cell 'stderr-expected'.")
    elif warning := next(filter(None, map(traces.stray_warning, traces.texts_of(output))), None):
        yield chapter.says(
            number, f"the output shows a {warning}; remove the cause, or tag the cell 'stderr-expected'."
        )


def _no_machine(chapter: Chapter, number: int, output: dict) -> Iterator[Violation]:
    if trace := next(filter(None, map(traces.machine_trace, traces.texts_of(output))), None):
        yield chapter.says(number, f"the output contains {trace!r}, which belongs to one machine; do not print it.")


def alternative_text(chapter: Chapter) -> Iterator[Violation]:
    """Every picture can be read out."""
    for number, cell in chapter.code:
        for output in cell["outputs"]:
            for kind in output.get("data", {}):
                if kind.startswith("image/") and not _alt_of(output, kind):
                    yield chapter.says(
                        number, "the figure has no alternative text; show it with `viz.show(figure, alt=...)`."
                    )
    for number, text in chapter.prose:
        for picture in markdown.pictures(text):
            if not picture.text.strip():
                yield chapter.says(
                    number, f"the picture {picture.target} has no alternative text; write it between the brackets."
                )


def _alt_of(output: dict, kind: str) -> str:
    return str(output.get("metadata", {}).get(kind, {}).get("alt", "")).strip()


def links(chapter: Chapter) -> Iterator[Violation]:
    """Every link within the course leads somewhere."""
    for number, text in chapter.prose:
        for link in [*markdown.links(text), *markdown.pictures(text)]:
            if not markdown.is_external(link.target) and not _leads_somewhere(chapter, link.target):
                yield chapter.says(number, f"the link to {link.target} leads nowhere; correct or remove it.")


def _leads_somewhere(chapter: Chapter, target: str) -> bool:
    if target.startswith("attachment:"):
        return any(target.removeprefix("attachment:") in cell.get("attachments", {}) for _, cell in chapter.cells)
    file, _, anchor = target.partition("#")
    path = chapter.path.parent / markdown.unquote(file) if file else chapter.path
    if not path.exists():
        return False
    return not anchor or path.suffix != ".ipynb" or markdown.unquote(anchor) in _anchors(path, chapter)


def _anchors(path: Path, chapter: Chapter) -> set[str]:
    notebook = chapter.notebook if path == chapter.path else read_notebook(path)
    texts = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    return {anchor for text in texts for anchor in markdown.anchors(text)}


RULES: tuple[Rule, ...] = (
    title_and_aims,
    set_up,
    sections,
    summary,
    length_of_prose,
    length_of_code,
    no_empty_cells,
    executed_in_order,
    kernel,
    clean_outputs,
    alternative_text,
    links,
)
