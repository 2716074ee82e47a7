"""What the course is about, in one picture: a guess at the memory of one training step, a prediction, and the measurement."""

from dataclasses import dataclass
from functools import cache

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course_staff.documents.themes import style_in
from course_utils.units import MiB, format_bytes
from course_utils.viz.parts import patches, subplots
from course_utils.viz.style import COLORS

_SIZES = {"n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 8192, "n_positions": 256}
_BATCH, _SEQUENCE = 8, 128
_BYTES_A_PARAMETER = 16  # four numbers of 4 bytes: the parameter, its gradient, AdamW's two averages
_QUESTION = "How much memory does one training step take?"
_ROOM = 1.25  # beyond the longest bar, for its figure


@dataclass(frozen=True)
class OneStep:
    """Bytes of one step of AdamW: what a rule of thumb says, and by kind what was predicted and measured at the peak."""

    parameters: int
    guess: int
    predicted: dict[str, int]
    measured: dict[str, int]


@cache
def take_one_step() -> OneStep:
    """Predict a step of a small GPT-2 by a dry run, then take it on the CPU beside the allocator's record; some seconds."""
    from transformers import GPT2Config

    from course_utils import memory, models

    config = GPT2Config(**_SIZES, bos_token_id=0, eos_token_id=0, architectures=["GPT2LMHeadModel"])
    work = memory.Workload(config, memory.Recipe("adamw", batch=_BATCH, sequence=_SEQUENCE))
    predicted = memory.dry_run(work.build, work.step).split
    model, *rest = work.build()
    measured = memory.measure((model, *rest), work.step).split
    count = models.parameter_count(model)
    return OneStep(count, _BYTES_A_PARAMETER * count, predicted, measured)


def one_step_figure(theme: str = "light") -> tuple[Figure, str]:
    """Three bars below each other: guess, prediction, measurement. `theme` is one of `THEMES`."""
    step = take_one_step()
    bars = {
        f"guess:\n{_BYTES_A_PARAMETER} bytes a parameter": {"guess": step.guess},
        "prediction,\nbefore anything ran": step.predicted,
        "measurement,\nin the real step": step.measured,
    }
    with plt.rc_context({**style_in(theme), "font.size": 12}):
        figure, axes = subplots(figsize=(9, 3.1), layout="constrained")
        for row, parts in enumerate(bars.values()):
            left = 0.0
            for kind, size in parts.items():
                axes.barh(row, size / MiB, 0.66, left=left, color=COLORS.get(kind, COLORS["predicted"]))
                left += size / MiB
            axes.text(left, row, f"  {format_bytes(sum(parts.values()))}", va="center", fontsize=14, weight="bold")
        axes.set_title(_QUESTION, fontsize=15, weight="bold", pad=10)
        axes.set(xticks=[], xlim=(0, _ROOM * sum(step.measured.values()) / MiB))
        axes.set(yticks=range(len(bars)), yticklabels=list(bars), ylim=(2.4, -0.4))
        axes.tick_params(length=0, labelsize=12)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        seen = [kind for kind, size in step.measured.items() if size >= MiB]
        figure.legend(*patches(*zip(seen, seen, strict=True)), loc="outside lower right", ncols=len(seen), fontsize=11)
    sums = [" ".join(name.split()) + f": {format_bytes(sum(parts.values()))}" for name, parts in bars.items()]
    of_these = ", ".join(f"{kind} {format_bytes(step.measured[kind])}" for kind in seen)
    return figure, (
        f"{_QUESTION} GPT-2 with {step.parameters / 1e6:.1f} million parameters, "
        f"{_BATCH} texts of {_SEQUENCE} tokens, AdamW. {'; '.join(sums)} ({of_these})."
    )
