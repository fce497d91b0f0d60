"""A sheet to draw on: pixels from the top left, text that fits its place, and glyphs for whatever a model writes."""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggufslice.errors import MissingExtraError, OutputError

try:
    import matplotlib as mpl
    from matplotlib import font_manager
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch, Rectangle
    from matplotlib.textpath import TextPath
except ImportError as error:  # pragma: no cover - tests have the extra
    raise MissingExtraError.of("card", "matplotlib") from error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

__all__ = [
    "AMBER",
    "AMBER_INK",
    "BLUE",
    "GREEN",
    "GREY",
    "INK",
    "LINE",
    "PALE",
    "RED",
    "Sheet",
    "columns",
    "legible",
    "save",
]

INK, GREY, LINE, PALE, WHITE = "#1f2933", "#5f6c79", "#d5dbe1", "#f4f6f8", "#ffffff"
BLUE, GREEN, RED = "#2b5c8a", "#2e7d4f", "#a5382b"
AMBER, AMBER_PALE, AMBER_INK = "#d9961a", "#fdf1d3", "#7d5200"
SANS, MONO = "DejaVu Sans", "DejaVu Sans Mono"  # both come with matplotlib
_DPI = 100  # of the coordinates: a pixel is 0.72 pt
_PNG_DPI = 160
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_NO_TEXT = ("lastresort", "emoji", "symbol")  # fonts that draw a box for everything, or colours


class Sheet:
    """A sheet of `width` pixels, as high as what is drawn on it."""

    def __init__(self, width: int) -> None:
        self.figure = Figure(dpi=_DPI, facecolor=WHITE)
        self._width = width
        self._axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.axis("off")

    def end(self, height: float) -> None:
        """Cut the sheet off below `height`."""
        self.figure.set_size_inches(self._width / _DPI, height / _DPI)
        self._axes.set_xlim(0, self._width)
        self._axes.set_ylim(height, 0)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 15,
        *,
        color: str = INK,
        bold: bool = False,
        mono: bool = False,
        right: bool = False,
        center: bool = False,
        width: float | None = None,
    ) -> None:
        """Write one line whose baseline is at `y`; what is longer than `width` is made smaller, then cut off."""
        shown, families = legible(text, mono=mono)
        if width is not None:
            shown, size = fit(shown, size, width, families, bold=bold)
        self._axes.text(
            x,
            y,
            shown,
            fontsize=size * 0.72,
            color=color,
            fontweight="bold" if bold else "normal",
            fontfamily=list(families),
            ha="right" if right else "center" if center else "left",
            va="baseline",
            parse_math=False,
        )

    def box(self, x: float, y: float, width: float, height: float, *, fill: str = PALE, edge: str = LINE) -> None:
        """Draw a box with rounded corners."""
        style = "round,pad=0,rounding_size=8"
        self._axes.add_patch(
            FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=fill, edgecolor=edge, linewidth=1)
        )

    def amber(self, x: float, y: float, width: float, height: float, what: str, why: str = "") -> None:
        """Draw the box of something that wasn't measured."""
        self.box(x, y, width, height, fill=AMBER_PALE, edge=AMBER)
        self.text(x + 14, y + height / 2 + 5, what, 14, color=AMBER_INK, width=width / 2 - 20)
        self.text(x + width - 14, y + height / 2 + 5, why or "not measured", 14, color=AMBER_INK, bold=True, right=True)

    def pill(self, x: float, y: float, text: str, color: str) -> None:
        """Draw a label whose right edge is at `x`, around the baseline `y`."""
        width = measure(text, 14, (SANS,), bold=True) + 28
        self.box(x - width, y - 20, width, 29, fill=WHITE, edge=color)
        self.text(x - width / 2, y, text, 14, color=color, bold=True, center=True)

    def bar(self, x: float, y: float, width: float, share: float) -> None:
        """Draw a bar of which a part is filled; a part that is not nothing is always seen."""
        self._axes.add_patch(Rectangle((x, y), width, 10, facecolor=LINE, edgecolor="none"))
        self._axes.add_patch(
            Rectangle((x, y), max(1.5, width * share) if share > 0 else 0, 10, facecolor=BLUE, edgecolor="none")
        )

    def rule(self, x: float, y: float, width: float) -> None:
        """Draw a thin line."""
        self._axes.plot([x, x + width], [y, y], color=LINE, linewidth=1)


def save(figure: Any, path: str | PathLike[str], title: str) -> None:
    """Write a figure as SVG or PNG; the same figure makes the same bytes.

    Raises
    ------
    ValueError
        Another suffix.
    OutputError
        The file can't be written.
    """
    path = Path(path)
    metadata: dict[str, Any] = {
        ".svg": {"Date": None, "Title": legible(title)[0], "Creator": "ggufslice"},
        ".png": {"Software": "ggufslice"},
    }
    if path.suffix not in metadata:
        raise ValueError(f"pictures are .svg or .png, not {path.name!r}")
    with mpl.rc_context({"svg.hashsalt": "ggufslice", "svg.fonttype": "path"}):
        try:
            figure.savefig(path, dpi=_PNG_DPI, metadata=metadata[path.suffix])
        except OSError as error:
            raise OutputError(f"{path} can't be written: {error.strerror or error}") from None


@lru_cache(4096)
def measure(text: str, size: float, families: tuple[str, ...], *, bold: bool = False) -> float:
    """Return the width of a line, in pixels."""
    if not text.strip():
        return 0.0
    properties = font_manager.FontProperties(family=list(families), weight="bold" if bold else "normal")
    return float(TextPath((0, 0), text, size=size, prop=properties).get_extents().x1)


def fit(text: str, size: float, width: float, families: tuple[str, ...], *, bold: bool = False) -> tuple[str, float]:
    """Return a line, cut off with an ellipsis where need be, and the size at which it is no wider than `width`."""
    needed = measure(text, size, families, bold=bold)
    if needed > width:
        size = max(size * 0.65, 0.99 * size * width / needed)
    while len(text) > 1 and (needed := measure(text, size, families, bold=bold)) > width:
        kept = min(len(text) - 2, round(len(text) * width / needed))
        text = text[:kept].rstrip() + "…"
    return text, size


def legible(text: str, *, mono: bool = False) -> tuple[str, tuple[str, ...]]:
    r"""Return the text with what can't be drawn escaped, as ``\u{4f60}``, and the fonts that draw the rest.

    The fonts that come with matplotlib go first; for what they lack, those that are installed are looked through.
    """
    first = MONO if mono else SANS
    families = [first, SANS if mono else MONO]
    out = []
    for char in text:
        family = None if unicodedata.category(char) in _UNSEEN else _family(char, first)
        if family is None:
            out.append(f"\\u{{{ord(char):x}}}")
            continue
        out.append(char)
        if family not in families:
            families.append(family)
    return "".join(out), tuple(families)


@cache
def _family(char: str, first: str) -> str | None:
    """Return a font that has a glyph for `char`."""
    for name in dict.fromkeys((first, SANS, MONO)):
        if _has(font_manager.findfont(name, fallback_to_default=False), char):
            return name
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)):
        plain = entry.style == "normal" and not any(word in entry.name.lower().replace(" ", "") for word in _NO_TEXT)
        if plain and _has(entry.fname, char):
            return entry.name
    return None


def _has(path: str, char: str) -> bool:
    try:
        return bool(font_manager.get_font(path).get_char_index(ord(char)))
    except (OSError, RuntimeError):  # a bitmap font, or a file that is gone
        return False


def columns(text: str, width: int) -> Iterable[str]:
    """Break text into lines of at most `width` columns, at spaces where there are some, without losing a character.

    East Asian wide characters take two columns.
    """
    for line in text.split("\n"):
        out, used = "", 0
        for char in line:
            wide = 2 if unicodedata.east_asian_width(char) in "WF" else 1
            if used + wide > width:
                cut = out.rfind(" ") + 1
                cut = cut if cut > len(out) // 2 else len(out)
                yield out[:cut]
                out = out[cut:]
                used = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in out)
            out += char
            used += wide
        yield out
