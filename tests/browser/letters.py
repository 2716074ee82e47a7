"""`python letters.py DEMO`: as JSON, the smallest letters in points that each figure of a demo has, by its description."""

import json
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure
from matplotlib.text import Text

from course_staff.demos import read_demo
from course_staff.demos.controls import press
from course_staff.demos.presentation import presentation
from course_utils.viz import display


def main(path: Path) -> None:
    """Run the demo's cells as its kernel does, make its clicks, and note the letters of every figure that is saved."""
    points, last = {}, []

    def note(figure, *arguments, save=Figure.savefig, **options):
        texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
        last[:] = [min(text.get_fontsize() for text in texts)]
        return save(figure, *arguments, **options)

    def describe(figure, alt, picture=display.picture):
        bundle = picture(figure, alt)
        points[alt] = min(last[0], points.get(alt, last[0]))
        return bundle

    Figure.savefig, display.picture = note, describe
    demo, shell = read_demo(path), InteractiveShell.instance()
    clicks = [step.click for step in demo.steps if step.click]
    for cell in presentation(demo).cells:
        if cell.cell_type == "code":
            with capture_output():
                shell.run_cell(cell.source).raise_error()
                if cell.metadata["demo"]["role"] == "click":
                    press(clicks.pop(0))
    print(json.dumps(points))


main(Path(sys.argv[1]))
