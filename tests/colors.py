"""Colors as readers see them: contrast of letters, distance of areas, for every kind of cones."""

from collections.abc import Iterator

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text

READABLE = 4.5

# Machado, Oliveira & Fernandes (2009), severity 1: what readers without one kind of cone see, in linear RGB.
SEEN_BY = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB, white D65."""
    xyz = _XYZ @ np.clip(rgb, 0, 1) / _XYZ.sum(axis=1)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(first: str, second: str, reader: str) -> float:
    """Between two colors in CIE L*a*b* (1976), as this reader sees them."""
    ours, theirs = (lab(SEEN_BY[reader] @ linear(color)) for color in (first, second))
    return float(np.linalg.norm(ours - theirs))


def contrast(first: str, second: str) -> float:
    """WCAG's ratio of relative luminances, 1 to 21."""
    light = sorted((_XYZ[1] @ linear(color) + 0.05 for color in (first, second)), reverse=True)
    return float(light[0] / light[1])


def faint_texts(figure: Figure) -> Iterator[tuple[str, float]]:
    """Texts of `figure` with less contrast than can be read, and how much they have."""
    for text in _texts_in(figure):
        if text.get_text().strip() and text.get_visible():
            ratio = contrast(to_hex(text.get_color()), _ground(text, figure))
            if ratio < READABLE:
                yield text.get_text(), ratio


def _texts_in(artist: Artist) -> Iterator[Text]:
    """As `findobj` finds them, which makes every tick that was not drawn yet, and without its words."""
    if isinstance(artist, Text):
        yield artist
    elif isinstance(artist, Axis):
        ticks = [tick for kind in ("majorTicks", "minorTicks") for tick in vars(artist).get(kind, ())]
        yield from (artist.label, artist.offsetText, *(text for tick in ticks for text in (tick.label1, tick.label2)))
    else:
        for child in artist.get_children():
            yield from _texts_in(child)


def _ground(text: Text, figure: Figure) -> str:
    """The color behind a text: its own box, the uppermost area at its middle, or paper."""
    box = text.get_bbox_patch()
    if box is not None and to_rgba(box.get_facecolor())[3]:
        return to_hex(box.get_facecolor())
    extent = text.get_window_extent(figure._get_renderer())
    middle = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
    areas = [area for area in (text.axes.patches if text.axes else []) if _covers(area, middle)]
    top = max(areas, key=Patch.get_zorder, default=None)  # of equals the last, which is drawn last
    return _over_paper(top.get_facecolor()) if top else to_hex(figure.get_facecolor())


def _covers(area: Patch, place: tuple[float, float]) -> bool:
    shape = area.get_transform().transform_path(area.get_path())
    return area.get_visible() and area.get_fill() and shape.contains_point(place)


def _over_paper(color) -> str:
    red, green, blue, share = to_rgba(color)
    return to_hex([share * part + 1 - share for part in (red, green, blue)])
