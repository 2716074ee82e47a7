"""Bytes, seconds and counts in the form people read them; MiB = 2**20 bytes."""

KiB, MiB, GiB = 2**10, 2**20, 2**30

BYTE_UNITS = (("GiB", GiB), ("MiB", MiB), ("KiB", KiB))
SECOND_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def round_up(size: int, grain: int) -> int:
    """The smallest multiple of `grain` that is no less than `size`."""
    return -(-size // grain) * grain


def format_bytes(count: float) -> str:
    """`count` bytes in the largest binary unit that keeps the figure at or above 1: `'502 MiB'`, `'1.25 GiB'`.

    >>> format_bytes(124_439_808 * 4)
    '475 MiB'
    """
    for name, size in BYTE_UNITS:
        if abs(count) >= size:
            return f"{three_digits(count / size)} {name}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """`seconds` as `'3 min 20 s'`, `'1.50 s'`, `'42.0 ms'` or `'7.00 µs'`, with a minus sign where they are negative."""
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    for name, size in SECOND_UNITS:
        if seconds >= size:
            return f"{three_digits(seconds / size)} {name}"
    return f"{seconds / 1e-6:.2f} µs"


def format_count(count: float) -> str:
    """`count` with thousands separated: `'131,566,188'`."""
    return f"{count:,.0f}"


def format_counted(count: float, noun: str) -> str:
    """`count` of a thing, which is its singular: `'1 rank'`, `'2 ranks'`, `'2.5 points'`."""
    figure = format_count(count) if count == int(count) else f"{count:g}"
    return f"{figure} {noun}{'' if count == 1 else 's'}"


def bar(share: float, blocks: int, signs: str) -> str:
    """So many of two signs, full and empty; all are full, or empty, only where all, or nothing, is done.

    >>> bar(0.98, 5, "█·")
    '████·'
    """
    full = min(blocks - (share < 1), max(int(share > 0), round(share * blocks)))
    return signs[0] * full + signs[1] * (blocks - full)


def three_digits(value: float) -> str:
    """Three significant digits, and never fewer than the whole part."""
    exponent = int(f"{value:.2e}".partition("e")[2])  # of the rounded figure: 9.996 is shown as 10.0
    decimals = max(0, 2 - exponent)
    return f"{value:,.{decimals}f}"
