"""All settled bets in one figure."""

from math import log10

from course_utils.desk.bets import FAIR, Bet, load_bets, with_unit

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
    from course_utils.viz.labels import note
    from course_utils.viz.plots import panels
    from course_utils.viz.style import COLORS, text_color

    labels = [f"{name}: bet {with_unit(', is '.join(bet.in_words()), bet.unit)}" for name, bet in bets.items()]
    distances = [bet.distance for bet in bets.values()]
    points = {row: max(-_EDGE, min(_EDGE, x)) for row, x in enumerate(distances) if x is not None}
    reach = max([log10(FAIR), *map(abs, points.values())])
    figure, axes = panels(height=1.3 + 0.36 * len(bets))
    axes.axvspan(-log10(FAIR), log10(FAIR), color=COLORS["grid"], alpha=0.5, linewidth=0)
    axes.axvline(0, color=COLORS["ink"], linewidth=1)
    axes.hlines(list(points), 0, list(points.values()), colors=COLORS["first"])
    axes.plot(list(points.values()), list(points), "o", color=COLORS["first"], markersize=7)
    for row, bet in enumerate(bets.values()):
        if bet.distance is None:
            note(axes, bet.verdict, (0, row), color=text_color("not attributed"), parse_math=False)
    ticks = (2, 5, 10, 20) if reach < 1.5 else (100, 10_000)
    names = {0.0: "exact"}
    for tick in ticks:
        names |= {-log10(tick): f"÷ {tick:,}", log10(tick): f"× {tick:,}"}
    axes.set_xticks(list(names), list(names.values()))
    axes.set_yticks(range(len(bets)), labels, fontsize=9, parse_math=False)
    axes.set(
        xlim=(-1.12 * reach, 1.12 * reach), ylim=(len(bets) - 0.5, -0.5), xlabel="your bet, as a multiple of the truth"
    )
    axes.grid(visible=False, axis="y")
    fair = sum(bet.fair for bet in bets.values())
    title = f"{fair} of your {len(bets)} bets came within a factor of {FAIR} of the truth"
    if len(bets) == 1:
        title = f"Your bet was {next(iter(bets.values())).verdict}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    description = "; ".join(f"{label}, {bet.verdict}" for label, bet in zip(labels, bets.values(), strict=True))
    return figure, f"Each bet as a multiple of the truth, on a logarithmic axis: {description}."
