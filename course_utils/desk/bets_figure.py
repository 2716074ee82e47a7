"""All settled bets in one figure."""

from math import log10

from course_utils.desk.bets import FAIR, Bet, load_bets, with_unit

_EDGE = 6.0  # the axis ends at 10 to this power


def picture() -> None:
    """Show all settled bets of this reader in one figure; unattended, those that this notebook settled."""
    from course_utils import viz

    settled = {name: entry for name, entry in load_bets().items() if entry.truth is not None}
    if settled:
        viz.show(*figure_of(settled))
    else:
        print("No bet is settled yet; run the chapter from its first cell.")


def figure_of(settled: dict[str, Bet]) -> tuple:
    """A row for each bet with its distance from the truth on a logarithmic axis, and what is seen, in words."""
    from course_utils.viz.parts import subplots
    from course_utils.viz.style import COLORS, MARKS, SERIES, text_color

    chapters = sorted({name.partition("-")[0] for name in settled})
    labels = [f"{name}: bet {with_unit(', is '.join(entry.in_words()), entry.unit)}" for name, entry in settled.items()]
    figure, axes = subplots(figsize=(7.6, 1.3 + 0.36 * len(settled)), layout="constrained")
    axes.axvspan(-log10(FAIR), log10(FAIR), color=COLORS["grid"], alpha=0.5, linewidth=0)
    axes.axvline(0, color=COLORS["ink"], linewidth=1)
    drawn = [log10(FAIR)]
    for row, (name, entry) in enumerate(settled.items()):
        style = chapters.index(name.partition("-")[0]) % len(SERIES)
        if entry.distance is None:
            axes.text(
                0.02, row, entry.verdict, va="center", fontsize=9, color=text_color("not attributed"), parse_math=False
            )
            continue
        place = max(-_EDGE, min(_EDGE, entry.distance))
        axes.plot([0, place], [row, row], color=COLORS[SERIES[style]])
        axes.plot(place, row, MARKS[style], color=COLORS[SERIES[style]], markersize=7)
        drawn.append(abs(place))
    ticks = (2, 5, 10, 20) if max(drawn) < 1.5 else (10, 1_000, 100_000)
    ticks = [tick for tick in ticks if log10(tick) <= max(drawn)]
    axes.set_xticks([*(-log10(tick) for tick in ticks), 0, *map(log10, ticks)])
    axes.set_xticklabels([*(f"÷ {tick:,}" for tick in ticks), "exact", *(f"× {tick:,}" for tick in ticks)])
    axes.set_yticks(range(len(settled)), labels, fontsize=9, parse_math=False)
    axes.set(xlim=(-1.12 * max(drawn), 1.12 * max(drawn)), ylim=(len(settled) - 0.5, -0.5))
    axes.set_xlabel("your bet, as a multiple of the truth")
    axes.grid(visible=False, axis="y")
    fair = sum(entry.fair for entry in settled.values())
    title = f"{fair} of your {len(settled)} bets came within a factor of {FAIR} of the truth"
    if len(settled) == 1:
        title = f"Your bet was {entry.verdict}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    description = "; ".join(f"{label}, {entry.verdict}" for label, entry in zip(labels, settled.values(), strict=True))
    return figure, f"Each bet as a multiple of the truth, on a logarithmic axis: {description}."
