"""All settled bets in one figure."""

from math import log10

from course_utils.desk.bets import FAIR, Bet, chapter_number, load_bets, with_unit

_EDGE = 6.0  # the axis ends at 10 to this power


def picture() -> None:
    """Show all settled bets of this reader in one figure; unattended, those that this notebook settled."""
    from course_utils import viz

    bets = {name: bet for name, bet in load_bets().items() if bet.truth is not None}
    if bets:
        viz.show(*figure_of(bets))
    else:
        print("No bet is settled yet; run the chapter from its first cell.")


def figure_of(bets: dict[str, Bet]) -> tuple:
    """A figure with each bet's distance from the truth on a logarithmic axis, and its alternative text."""
    from course_utils.viz.parts import subplots
    from course_utils.viz.style import COLORS, MARKS, SERIES, text_color

    chapters = sorted({chapter_number(name) for name in bets})
    labels = [f"{name}: bet {with_unit(', is '.join(bet.in_words()), bet.unit)}" for name, bet in bets.items()]
    figure, axes = subplots(figsize=(7.6, 1.3 + 0.36 * len(bets)), layout="constrained")
    axes.axvspan(-log10(FAIR), log10(FAIR), color=COLORS["grid"], alpha=0.5, linewidth=0)
    axes.axvline(0, color=COLORS["ink"], linewidth=1)
    extents = [log10(FAIR)]
    for row, (name, bet) in enumerate(bets.items()):
        style = chapters.index(chapter_number(name)) % len(SERIES)
        if bet.distance is None:
            axes.text(
                0.02, row, bet.verdict, va="center", fontsize=9, color=text_color("not attributed"), parse_math=False
            )
            continue
        x = max(-_EDGE, min(_EDGE, bet.distance))
        axes.plot([0, x], [row, row], color=COLORS[SERIES[style]])
        axes.plot(x, row, MARKS[style], color=COLORS[SERIES[style]], markersize=7)
        extents.append(abs(x))
    ticks = (2, 5, 10, 20) if max(extents) < 1.5 else (10, 1_000, 100_000)
    ticks = [tick for tick in ticks if log10(tick) <= max(extents)]
    axes.set_xticks([*(-log10(tick) for tick in ticks), 0, *map(log10, ticks)])
    axes.set_xticklabels([*(f"÷ {tick:,}" for tick in ticks), "exact", *(f"× {tick:,}" for tick in ticks)])
    axes.set_yticks(range(len(bets)), labels, fontsize=9, parse_math=False)
    axes.set(xlim=(-1.12 * max(extents), 1.12 * max(extents)), ylim=(len(bets) - 0.5, -0.5))
    axes.set_xlabel("your bet, as a multiple of the truth")
    axes.grid(visible=False, axis="y")
    fair = sum(bet.fair for bet in bets.values())
    title = f"{fair} of your {len(bets)} bets came within a factor of {FAIR} of the truth"
    if len(bets) == 1:
        title = f"Your bet was {bet.verdict}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    description = "; ".join(f"{label}, {bet.verdict}" for label, bet in zip(labels, bets.values(), strict=True))
    return figure, f"Each bet as a multiple of the truth, on a logarithmic axis: {description}."
