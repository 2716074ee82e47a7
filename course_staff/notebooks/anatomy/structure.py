"""Rules for what comes in which order: title, set-up cell, sections, summary."""

import re
from collections.abc import Iterator

from course_staff.notebooks import markdown, setup_cell
from course_staff.notebooks.anatomy.chapter import Chapter, Violation
from course_staff.notebooks.successor import with_successor

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


def successor(chapter: Chapter) -> Iterator[Violation]:
    """The last Markdown ends with a link to the next chapter."""
    number, text = chapter.prose[-1] if chapter.prose else (0, "")
    if chapter.prose and text != with_successor(chapter.path, text):
        yield chapter.says(number, "the link to the next chapter is not today's; run `course stamp`.")


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
