"""The ladder as a plot: speed and figures against what was deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ggufslice.bench import _sheet
from ggufslice.bench._sheet import BLUE, GREY, INK, LINE, RED, legible
from ggufslice.errors import BenchError

if TYPE_CHECKING:
    from os import PathLike

    from matplotlib.axes import Axes

    from ggufslice.bench._results import Results

__all__ = ["draw_ladder"]


def draw_ladder(results: Results, *paths: str | PathLike[str]) -> None:
    """Draw decode speed, and both bits-per-parameter figures, against layers.

    Parameters
    ----------
    results
        What was measured. Numbers that don't agree with each other are refused.
    *paths
        Files to make: ``.svg`` or ``.png``.

    Raises
    ------
    BenchError
        The results contradict themselves, or hold fewer than two rungs.
    MissingExtraError
        matplotlib isn't installed: the extra is ``card``.
    """
    results.check()
    if len(results.steps) < 2:
        raise BenchError(f"a ladder has two rungs at least, and {results.name!r} has {len(results.steps)}")
    figure = Figure(figsize=(11, 4.8), dpi=100, layout="constrained")
    speed, bits = figure.subplots(1, 2)
    _speeds(speed, results)
    _bits(bits, results)
    name, families = legible(results.name)
    figure.suptitle(
        name, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK, fontfamily=list(families), parse_math=False
    )
    for path in paths:
        _sheet.save(figure, path, results.name)


def _speeds(axes: Axes, results: Results) -> None:
    measured = [(s.figures.layers, s.decode.per_second, s.decode.deviation or 0.0) for s in results.steps if s.decode]
    _style(axes, results, "layers", "decode, tokens/s")
    if not measured:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=_sheet.AMBER_INK)
        return
    layers, speeds, deviations = zip(*measured, strict=True)
    axes.set_yscale("log")
    _plain_numbers(axes, "y")
    ideal = [speeds[0] * layers[0] / n for n in layers]
    axes.plot(layers, ideal, color=GREY, linestyle="--", linewidth=1, label="one step a layer")
    axes.errorbar(layers, speeds, yerr=_below(speeds, deviations), color=BLUE, marker="o", capsize=4, label="measured")
    axes.legend(frameon=False, labelcolor=INK)


def _below(speeds: tuple[float, ...], deviations: tuple[float, ...]) -> list[list[float]]:
    """Keep error bars above nothing: the axis is logarithmic."""
    return [[min(d, 0.9 * s) for s, d in zip(speeds, deviations, strict=True)], list(deviations)]


def _bits(axes: Axes, results: Results) -> None:
    _style(axes, results, "layers", "bits per parameter")
    axes.set_yscale("log")
    _plain_numbers(axes, "y")
    layers = [s.figures.layers for s in results.steps]
    for values, color, label in (
        ([s.figures.real for s in results.steps], BLUE, "REAL"),
        ([s.figures.declared for s in results.steps], RED, "DECLARED"),
    ):
        points = [(n, v) for n, v in zip(layers, values, strict=True) if v]
        axes.plot([n for n, _ in points], [v for _, v in points], color=color, marker="o", label=label)
        for n, v in points:
            axes.annotate(
                f"{v:.4g}", (n, v), textcoords="offset points", xytext=(0, 8), ha="center", color=color, fontsize=9
            )
    axes.margins(y=0.2)
    axes.legend(frameon=False, labelcolor=INK)


def _style(axes: Axes, results: Results, x: str, y: str) -> None:
    layers = sorted({s.figures.layers for s in results.steps})
    if len(layers) > 1:
        axes.set_xscale("log")
        _plain_numbers(axes, "x")
    axes.set_xticks(layers)
    axes.invert_xaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.tick_params(colors=GREY)
    axes.grid(color=LINE, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)


def _plain_numbers(axes: Axes, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
