"""Rules for the stored run: in order, on any reader's kernel, clean, and with every picture put into words."""

from collections.abc import Iterator

from course_staff.notebooks import markdown, traces
from course_staff.notebooks.anatomy.chapter import Chapter, Violation
from course_staff.notebooks.clean import STORED_SCALE, shows_progress


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
    """No error, no warning, nothing of the machine, or of the learner, that made the outputs."""
    for number, cell in chapter.code:
        tags = cell["metadata"].get("tags", [])
        for output in cell["outputs"]:
            if not {"raises-exception", "stderr-expected"}.intersection(tags):
                yield from _no_trouble(chapter, number, output)
            yield from _no_machine(chapter, number, output)
        if shows_progress(cell):
            yield chapter.says(
                number, "its output is some learner's progress; run `course run --save` with an empty COURSE_HOME."
            )


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
