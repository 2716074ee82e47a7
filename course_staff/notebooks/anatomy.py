"""What makes a notebook a chapter of this course, rule by rule.

A rule takes a `Chapter` and yields, for everything that breaks it, the number of a cell and a sentence. Cells count from 1;
0 means the whole notebook.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_staff.notebooks import markdown, setup_cell, traces
from course_staff.notebooks.clean import STORED_SCALE, leaks
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.glossary import GLOSSARY, read_glossary, with_links
from course_staff.notebooks.links import dead_links
from course_staff.notebooks.successor import with_successor, without_successor
from course_utils.errors import first_line
from course_utils.files import exercises_of

SECTIONS = (
    "Predict the cost",
    "The idea in one picture",
    "By hand",
    "With PyTorch, Accelerate and Trainer",
    "Measure",
    "When it fails",
    "Play",
    "Summary",
)
MOST_WORDS = 2_300
USUAL_LINES, MOST_LINES, LONG_SHARE = 10, 15, 0.1


@dataclass(frozen=True)
class Violation:
    """A broken rule; `cell` counts from 1 and is 0 where the whole notebook is meant."""

    chapter: str
    cell: int
    remark: str

    def __str__(self) -> str:
        place = f"{self.chapter}, cell {self.cell}" if self.cell else self.chapter
        return f"{place}: {self.remark}"


class Chapter:
    """A notebook as the rules see it: its cells with their numbers."""

    def __init__(self, path: Path, notebook: dict[str, Any]):
        self.path, self.notebook = path, notebook
        self.cells = list(enumerate(notebook["cells"], start=1))
        self.code = [(number, cell) for number, cell in self.cells if cell["cell_type"] == "code"]
        self.prose = [(number, cell["source"]) for number, cell in self.cells if cell["cell_type"] == "markdown"]


Remarks = Iterator[tuple[int, str]]


def violations_in(path: Path) -> list[Violation]:
    """Everything in the notebook at `path` that breaks a rule; raises `CourseError` if it is not a notebook."""
    chapter = Chapter(Path(path), read_notebook(path))
    # Without a valid format no other rule can be applied.
    rules = [check_format] if any(check_format(chapter)) else RULES
    return [Violation(chapter.path.name, *remark) for rule in rules for remark in rule(chapter)]


def check_format(chapter: Chapter) -> Remarks:
    """The notebook format itself, cell ids included."""
    import nbformat

    ids = [cell.get("id") for _, cell in chapter.cells]
    if None in ids or chapter.notebook["nbformat_minor"] < 5:
        yield 0, "it has cells without an id; save it as notebook format 4.5 or later."
        return
    for index, cell_id in enumerate(ids):
        if cell_id in ids[:index]:
            yield index + 1, f"its id {cell_id!r} is that of cell {ids.index(cell_id) + 1} too; give it one of its own."
            return
    try:
        nbformat.validate(chapter.notebook)
    except nbformat.ValidationError as error:
        yield 0, f"it is not a valid notebook ({first_line(error)}); save it again from JupyterLab."


def check_title_and_aims(chapter: Chapter) -> Remarks:
    """The first cell: a title, three aims, the minutes."""
    number, text = chapter.prose[0] if chapter.prose else (0, "")
    if number != 1 or not text.startswith("# "):
        yield 1, "the chapter must begin with a Markdown cell that begins with its title, as in '# AdamW'."
        return
    aims = len(re.findall(r"^[-*] ", text, re.MULTILINE))
    if aims != 3:
        yield 1, f"what the reader will be able to do takes three lines that begin with '- ', not {aims}."
    if not re.search(r"^\*\*Time:\*\* about \d+ minutes", text, re.MULTILINE):
        yield 1, "add a line that says how long the chapter takes, as in '**Time:** about 30 minutes'."


def check_set_up(chapter: Chapter) -> Remarks:
    """The second cell is the set-up cell, as the course has it today, and it is the only one."""
    tagged = [(number, cell["source"]) for number, cell in chapter.code if setup_cell.is_setup(cell)]
    if [number for number, _ in tagged] != [2]:
        yield 2, "the second cell must be the set-up cell, and it alone must carry the tag 'setup'."
    elif tagged[0][1] != setup_cell.setup_source():
        yield 2, "the set-up cell is not today's; run `course stamp`."


def check_sections(chapter: Chapter) -> Remarks:
    """The sections in their order, each once."""
    headings = [
        (number, heading.text)
        for number, text in chapter.prose
        for heading in markdown.headings(text)
        if heading.level == 2
    ]
    names = [name for _, name in headings]
    for number, name in headings:
        if name not in SECTIONS:
            yield number, f"'## {name}' is not a section of a chapter; make it '### {name}' or use a section's name."
    for name in SECTIONS:
        if names.count(name) > 1:
            yield 0, f"the section '## {name}' comes more than once; join them or use '###'."
        elif name not in names:
            yield 0, f"the section '## {name}' is missing; write it."
    order = [name for name in dict.fromkeys(names) if name in SECTIONS]
    if order != sorted(order, key=SECTIONS.index):
        yield 0, f"the sections come in the wrong order; put them in this one: {', '.join(SECTIONS)}."


def check_summary(chapter: Chapter) -> Remarks:
    """Five numbered lines, three problems with folded answers, sources, and the exercises where there are any."""
    text = "\n".join(source for _, source in chapter.prose).partition("\n## Summary\n")[2]
    last = len(chapter.cells)
    if not text:
        return
    exercise = f"../{exercises_of(chapter.path.stem)}"
    if (chapter.path.parent / exercise).is_file() and exercise not in markdown.links(text):
        yield last, f"the summary must link to the exercises: {exercise}."
    lines = len(re.findall(r"^\d+\. ", text.split("\n### ")[0], re.MULTILINE))
    if lines != 5:
        yield last, f"the summary takes five numbered lines, not {lines}."
    names = [heading.text for heading in markdown.headings(text)]
    parts = [name for name in names if name in ("Problems", "Sources")]
    if parts != ["Problems", "Sources"]:
        yield last, "the summary needs the parts '### Problems' and '### Sources', in this order."
    elif (folded := text.partition("### Problems")[2].partition("\n### ")[0].count("<details>")) != 3:
        yield last, f"the summary takes three problems, each with a folded answer (`<details>`), not {folded}."


def check_successor(chapter: Chapter) -> Remarks:
    """The last Markdown ends with a link to the next chapter."""
    for number, text in chapter.prose[-1:]:
        if text != with_successor(chapter.path, text):
            yield number, "the link to the next chapter is not today's; run `course stamp`."


def check_glossary_links(chapter: Chapter) -> Remarks:
    """The first use of each term leads into the glossary, as that is today."""
    glossary = chapter.path.parents[1] / GLOSSARY
    if glossary.is_file():
        today = with_links(chapter.notebook, chapter.path.stem, read_glossary(glossary))
        for (number, text), linked in zip(chapter.prose, today, strict=True):
            if text != linked:
                yield number, "the links into the glossary are not today's; run `course stamp`."


def check_length_of_prose(chapter: Chapter) -> Remarks:
    """A chapter is read in one sitting."""
    read = [re.sub(r"^### Problems$.*?(?=^### |\Z)", "", text, flags=re.M | re.S) for _, text in chapter.prose]
    total = sum(markdown.count_words(without_successor(text)) for text in read)
    if total >= MOST_WORDS:
        yield 0, f"its prose has {total:,} words; bring it under {MOST_WORDS:,}."


def check_length_of_code(chapter: Chapter) -> Remarks:
    """A cell shows one thing: few lines, counted without blank ones and comments."""
    lengths = {number: len(re.findall(r"^\s*[^\s#]", cell["source"], re.MULTILINE)) for number, cell in chapter.code}
    for number, lines in lengths.items():
        if lines > MOST_LINES:
            yield number, f"the cell has {lines} lines of code; split it so that none has more than {MOST_LINES}."
    long = [number for number, lines in lengths.items() if USUAL_LINES < lines <= MOST_LINES]
    if len(long) > LONG_SHARE * len(lengths):
        counted = f"{len(long)} of {len(lengths)} code cells have more than {USUAL_LINES} lines"
        yield long[0], f"{counted}, this one first; shorten them until at most one in ten has."


def check_empty_cells(chapter: Chapter) -> Remarks:
    """An empty cell is left over, unless a tag says what it is for."""
    for number, cell in chapter.cells:
        if not cell["source"].strip() and not cell["metadata"].get("tags"):
            yield number, "the cell is empty; delete it, or tag it where it is meant."


def check_stored_run(chapter: Chapter) -> Remarks:
    """The stored outputs are those of one run from top to bottom, at the scale of the prose, by a kernel that anybody has."""
    runnable = [(number, cell["execution_count"]) for number, cell in chapter.code if cell["source"].strip()]
    for position, (number, count) in enumerate(runnable, start=1):
        if count != position:
            yield number, f"the cell has the number {count}, and is code cell {position}; run `course run --save`."
            break
    if chapter.notebook["metadata"].get("course", {}).get("scale") != STORED_SCALE:
        yield 0, f"its outputs are not marked as those of the {STORED_SCALE} scale; run `course run --save`."
    if chapter.notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield 0, "its kernel must be python3; run `course run --save`."


def check_outputs(chapter: Chapter) -> Remarks:
    """No error, no warning, nothing of the machine, or of the learner, that made the outputs."""
    for number, cell in chapter.code:
        if not {"raises-exception", "stderr-expected"} & set(cell["metadata"].get("tags", [])):
            for output in cell["outputs"]:
                warnings = filter(None, map(traces.stray_warning, traces.texts_of(output)))
                if output["output_type"] == "error":
                    yield number, f"the cell failed with {output['ename']}; mend it, or tag it 'raises-exception'."
                elif output.get("name") == "stderr":
                    yield number, "the cell wrote to stderr; silence the cause, or tag the cell 'stderr-expected'."
                elif warning := next(warnings, None):
                    yield number, f"the output shows a {warning}; remove the cause, or tag the cell 'stderr-expected'."
        yield from ((number, remark) for remark in leaks(cell))


def check_alternative_text(chapter: Chapter) -> Remarks:
    """Every picture can be read out."""
    for number, cell in chapter.code:
        for output in cell["outputs"]:
            for kind in output.get("data", {}):
                alt = output.get("metadata", {}).get(kind, {}).get("alt", "")
                if kind.startswith("image/") and not str(alt).strip():
                    yield number, "the figure has no alternative text; show it with `viz.show(figure, alt=...)`."
    for number, text in chapter.prose:
        for picture in markdown.pictures(text):
            if not picture.alt.strip():
                yield number, f"the picture {picture.target} has no alternative text; write it between the brackets."


def check_links(chapter: Chapter) -> Remarks:
    """Every link within the course leads somewhere, and every other is well formed."""
    attached = frozenset(name for _, cell in chapter.cells for name in cell.get("attachments", {}))
    for number, text in chapter.prose:
        yield from ((number, remark) for remark in dead_links(chapter.path, text, attached))


RULES: tuple[Callable[[Chapter], Remarks], ...] = (
    check_title_and_aims,
    check_set_up,
    check_sections,
    check_summary,
    check_successor,
    check_glossary_links,
    check_length_of_prose,
    check_length_of_code,
    check_empty_cells,
    check_stored_run,
    check_outputs,
    check_alternative_text,
    check_links,
)
