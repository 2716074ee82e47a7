"""The decision guide: a page that leads from the bytes that are too many to the rungs of `course plan` that lower them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from textwrap import wrap

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox

from course_utils import models
from course_utils.errors import CourseError
from course_utils.files import atomic_write, require_writable
from course_utils.hardware import MACHINES
from course_utils.memory.planning.effects import LEAST_CHANGE_OF_PACE, LEAST_REDUCTION, Effect, contradictions, effects
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.trace.log import KINDS
from course_utils.viz.parts import draw_arrow, draw_box, subplots
from course_utils.viz.style import COLORS, text_color

CHAPTERS = {
    "keep only the loss": "00",
    "gradients dropped after the update": "01",
    "fused optimizer": "03",
    "fused attention": "11",
    "micro-batch of 1": "06",
    "chunked loss": "11",
    "gradient checkpointing": "07",
    "ZeRO-1": "10",
    "ZeRO-3": "10",
    "activations on the host": "07",
    "optimizer on the host": "–",
    "update within backward": "05b",
    "8-bit AdamW": "05",
    "paged 8-bit AdamW": "–",
    "autocast": "08",
    "4-bit AdamW": "11b",
    "GaLore of rank 128": "11b",
    "Adafactor": "04",
    "SGD": "02",
    "all in bfloat16": "08",
    "LoRA of rank 16 on q_proj and v_proj": "11b",
    "LoRA of rank 16": "11b",
    "QLoRA of rank 16": "11b",
}
"""The chapter that explains each rung; – where none does."""

_RANKS = 8
_ON_CARDS = Recipe("adamw-foreach", device="cuda", batch=4, sequence=1024, ranks=_RANKS)
_ON_ONE = replace(_ON_CARDS, ranks=1)
RECIPES = (_ON_CARDS, replace(_ON_CARDS, attention="eager"), _ON_ONE, replace(_ON_ONE, zero_grad="before-backward"))
"""A rung is tried on the first of these to which it makes a difference."""
CARD = "A100-80GB"
_LEVELS = (
    "The training stays the same. You pay in time or traffic, or nothing.",
    "The numbers change a little.",
    "Another optimizer, or far fewer bits.",
    "Less of the model is trained.",
)
_MARKS = {
    "parameters": ("P", "paper"),
    "buffers": ("B", "paper"),
    "optimizer state": ("O", "ink"),
    "gradients": ("G", "ink"),
    "activations": ("A", "ink"),
    "backward temporaries": ("T", "ink"),
    "optimizer temporaries": ("U", "paper"),
}
"""Letter of each kind, and the color of the letter on the kind's own."""

# In inches, from the upper left corner.
_PAGE_WIDTH, _A4 = 7.6, (8.27, 11.69)
_KINDS_AT, _KIND_WIDTH, _EFFECTS_AT, _CHAPTER_AT = 3.5, 0.36, (6.1, 6.62), 7.15
_ROW_HEIGHT, _HEADING_HEIGHT, _TILE_SIZE = 0.24, 0.225, 0.185


@cache
def rung_effects() -> dict[str, Effect]:
    """What each rung of the ladder does to a Llama of two blocks, by dry runs: a few seconds the first time."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 16}
    small = models.configuration("llama", **sizes, num_hidden_layers=2, vocab_size=8192, max_position_embeddings=1024)
    return effects(small, RECIPES, MACHINES[CARD])


def page_figure() -> tuple[Figure, str]:
    """The page and its text. It is as wide as a notebook, and fits on A4."""
    by_name = rung_effects()
    kinds = [kind for kind in KINDS if any(kind in effect.lowers for effect in by_name.values())]
    page = _GuidePage()
    page.draw_path()
    page.draw_header(kinds, by_name)
    for level, heading in enumerate(_LEVELS):
        page.draw_heading(level, heading)
        for name, effect in by_name.items():
            if effect.change.level == level:
                page.draw_rung(name, effect, kinds)
    page.write_remarks()
    return page.finish(), _describe_page(by_name)


def save(path: str | Path) -> None:
    """Write the page as `.svg` or `.pdf` (A4), the same bytes each time. Raises `CourseError` for another kind of file."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("svg", "pdf"):
        problem = f"The guide is written as PDF or SVG, and {path.name!r} is neither"
        raise CourseError(f"{problem}; call the file `guide.pdf`, say.")
    page, _ = page_figure()
    sides = [(sheet_side - part) / 2 for sheet_side, part in zip(_A4, page.get_size_inches(), strict=True)]
    sheet = Bbox.from_bounds(-sides[0], -sides[1], *_A4)
    # Letters stay letters in both, and nothing in the file tells when it was written.
    letters = {"svg.fonttype": "none", "svg.hashsalt": "guide", "pdf.fonttype": 42}
    dates = {"Date": None} if kind == "svg" else {"CreationDate": None}
    writable = require_writable(path, "choose another place")
    with writable, matplotlib.rc_context(letters), atomic_write(path) as partial:
        page.savefig(partial, format=kind, bbox_inches=sheet, metadata={"Title": "Decision guide", **dates})


class _GuidePage:
    """The figure while it is drawn, from top to bottom; `y` is how far down it is."""

    def __init__(self):
        self.figure, self.axes = subplots()
        self.axes.set_position((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.y = 0.0

    def finish(self) -> Figure:
        self.figure.set_size_inches(_PAGE_WIDTH, self.y)
        self.axes.set(xlim=(0, _PAGE_WIDTH), ylim=(self.y, 0))
        return self.figure

    def write(self, x: float, y: float, text: str, size: float = 7.5, color: str = "ink", **text_style) -> None:
        self.axes.text(x, y, text, fontsize=size, color=text_color(color), **{"va": "center"} | text_style)

    def draw_path(self) -> None:
        rule = "Take the first rung that lowers your largest kind of bytes: it disturbs training least"
        self.write(0.02, 0.13, rule, 11)
        ask = draw_box(self.axes, 0.82, 0.83, "Does it fit? Ask\ncourse plan MODEL\n--memory 24GB", fontsize=8)
        cases = (
            (0.57, "It does not fit", _ADVICE_IF_TOO_LARGE, "warning"),
            (1.14, "It fits, but is slow\nor sends much", _ADVICE_IF_SLOW, "first"),
        )
        for y, symptom, advice, color in cases:
            case = draw_box(self.axes, 2.42, y, symptom, color, fontsize=8)
            draw_arrow(self.axes, ask, case)
            draw_arrow(self.axes, case, draw_box(self.axes, 5.45, y, advice, color, ink="ink", fontsize=8))
        self.y = 1.4

    def draw_header(self, kinds: Sequence[str], by_name: dict[str, Effect]) -> None:
        kind = "activations"
        first = [name for name, effect in by_name.items() if kind in effect.peak_kinds][:3]
        example = f"Example: most of the bytes are {kind}. The first three full marks in that column are {_join_names(first)}."
        for place, line in enumerate(wrap(example, 50)):
            self.write(0.05, self.y + 0.2 + 0.15 * place, line, 8)
        self.y += 0.95
        for place, kind in enumerate(kinds):
            x = _KINDS_AT + place * _KIND_WIDTH
            self.write(x - 0.04, self.y - 0.16, kind, 7.5, rotation=40, ha="left", va="bottom", rotation_mode="anchor")
            self.draw_tile(x, self.y, kind)
        for x, name in zip((*_EFFECTS_AT, _CHAPTER_AT), ("time", "traffic", "chapter"), strict=True):
            self.write(x, self.y, name, ha="center")
        self.write(0.05, self.y, "the rung, and what it costs")
        self.y += 0.17

    def draw_tile(self, x: float, y: float, kind: str, full: bool = True) -> None:
        letter, color = _MARKS[kind]
        corner = (x - _TILE_SIZE / 2, y - _TILE_SIZE / 2)
        face = COLORS[kind if full else "paper"]
        self.axes.add_patch(Rectangle(corner, _TILE_SIZE, _TILE_SIZE, facecolor=face, edgecolor=COLORS[kind]))
        text_style = {"weight": "bold", "ha": "center", "va": "center_baseline"}
        self.axes.text(x, y, letter, fontsize=8, color=COLORS[color if full else "ink"], **text_style)

    def draw_heading(self, level: int, text: str) -> None:
        self.axes.add_patch(Rectangle((0, self.y), _PAGE_WIDTH, _HEADING_HEIGHT - 0.05, facecolor="#EEEEEE"))
        self.write(0.05, self.y + (_HEADING_HEIGHT - 0.05) / 2, f"Level {level}. {text}", 8, weight="bold")
        self.y += _HEADING_HEIGHT

    def draw_rung(self, name: str, effect: Effect, kinds: Sequence[str]) -> None:
        middle = self.y + _ROW_HEIGHT / 2 - 0.03
        self.write(0.05, middle - 0.05, name, 8, weight="bold")
        differs = effect.change.makes_difference
        cards = "; several cards" if differs(_ON_CARDS) and not differs(_ON_ONE) else ""
        self.write(0.05, middle + 0.075, effect.change.costs + cards, 6.5)
        for place, kind in enumerate(kinds):
            if kind in effect.lowers:
                self.draw_tile(_KINDS_AT + place * _KIND_WIDTH, middle, kind, kind in effect.peak_kinds)
        for x, factor in zip(_EFFECTS_AT, (effect.seconds, effect.sent), strict=True):
            if mark := _mark(factor):
                self.write(x, middle, mark, 8, "third" if factor < 1 else "warning", ha="center")
        self.write(_CHAPTER_AT, middle, CHAPTERS[name], 8.5, ha="center")
        self.axes.plot([0, _PAGE_WIDTH], [self.y + _ROW_HEIGHT - 0.025] * 2, color=COLORS["grid"], linewidth=0.6)
        self.y += _ROW_HEIGHT

    def write_remarks(self) -> None:
        """What does not go together, and what a mark means."""
        self.y += 0.07
        self.write(0.05, self.y, "These do not go together, and a Recipe says why:", 8, weight="bold")
        self.y += 0.15
        for reason, pairs in contradictions(RECIPES).items():
            ones, others = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
            self.write_paragraph(f"{_join_names(ones)} with {_join_names(others)}: {reason}")
        self.y += 0.06
        self.write_paragraph(_MEANING_OF_MARKS)

    def write_paragraph(self, text: str) -> None:
        for place, line in enumerate(wrap(text, 148)):
            self.write(0.05 + 0.1 * bool(place), self.y, line, 6.5)
            self.y += 0.11


_ADVICE_IF_TOO_LARGE = (
    "Its plan names the peak and its largest kind, and prints changes\n"
    "that fit together; this page has their costs. By hand: in that kind's\n"
    "column take the first full mark, and ask again."
)
_ADVICE_IF_SLOW = "Green in the column time or traffic: try this rung.\nOrange: leave this rung out, if you have it."
_MEANING_OF_MARKS = (
    f"Full mark: at least {100 * LEAST_REDUCTION:.0f} % fewer bytes of this kind in the phase with most of them. "
    "Outlined mark: in another phase only (forward, backward or update). Rungs for the optimizer replace each other. "
    f"Time and traffic are multiples of a step's without the rung, if they differ by {100 * LEAST_CHANGE_OF_PACE:.0f} % or more: "
    f"time by an {CARD}'s data sheet, without traffic, as if small matrix products were as fast as large ones. "
    f"All are from dry runs of a small Llama in float32 on {_RANKS} cards, or on one for a rung that does not go with several. "
    "ZeRO-1 is torch's ZeroRedundancyOptimizer, which sends "
    "the new parameters after DDP's gradients; most buffers are DDP's buckets. Your model may differ: course plan tries each "
    "rung on it."
)


def _join_names(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _mark(factor: float) -> str:
    return f"× {factor:.2f}" if abs(factor - 1) >= LEAST_CHANGE_OF_PACE else ""


def _describe_page(by_name: dict[str, Effect]) -> str:
    lines = []
    for name, effect in by_name.items():
        phrases = [f"lowers {', '.join(sorted(effect.lowers, key=KINDS.index))}"] if effect.lowers else []
        for verb, factor in (("takes", effect.seconds), ("sends", effect.sent)):
            phrases += [f"{verb} {mark}"] if (mark := _mark(factor)) else []
        change = effect.change
        place = f"level {change.level}, chapter {CHAPTERS[name]}"
        lines.append(f"{name} ({place}; {change.costs}): {', '.join(phrases)}")
    return "A page with the rungs of the ladder, the least disturbing first. " + ". ".join(lines) + "."
