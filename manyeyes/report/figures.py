"""Figures: of runs, and what all others begin and end with."""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from manyeyes.io.files import atomic_write
from manyeyes.metrics import Curve
from manyeyes.report.page import Image
from manyeyes.report.text import escape

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # told apart by all eyes


@dataclass(frozen=True)
class Charts:
    """Pictures with captions, next to each other where there is room."""

    charts_: Sequence[tuple[Image, str]]

    def html(self) -> str:
        figures = (
            f'<figure class="chart">{image.html()}<figcaption>{escape(caption)}</figcaption></figure>'
            for image, caption in self.charts_
        )
        return f'<div class="grid">{"".join(figures)}</div>'


@dataclass(frozen=True, eq=False)
class CaptionedFigure:
    """A figure, what is seen in it, and what stands below it."""

    title: str
    figure: Figure
    caption: str


def render(figure: Figure, kind: str) -> bytes:
    """The bytes of a picture, svg or png."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in a script that the font lacks: boxes
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def new_figure(height: float = 4.0) -> Figure:
    margins = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    return Figure(figsize=(5.6, height), layout=margins, facecolor="white")


def new_axes(title: str, x: str, y: str, height: float = 4.0) -> tuple[Figure, Axes]:
    """A figure of one pair of axes."""
    figure = new_figure(height)
    axes = figure.subplots()
    axes.set_title(wrap_title(title), fontsize=11, loc="left", parse_math=False)
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def logarithmic(axes: Axes, which: str) -> None:
    """Powers of ten along x or y, where there are few of them 1, 2 and 5 of each; after the last line is drawn."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(format_tick))
    axis.set_minor_formatter(NullFormatter())


def wrap_title(title: str) -> str:
    return fill(title, 56)  # Matplotlib's own wrapping takes a $ in a name for mathematics


def format_tick(value: float, _: int) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def draw_curves(path: Path, curves: Mapping[str, Curve], bound: float, target: float, title: str) -> None:
    """Accuracy over rounds and over the batches of the largest client, below the centralised bound."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    over_rounds, over_batches = figure.subplots(1, 2, sharey=True)
    for colour, (name, curve) in zip(COLORS, curves.items(), strict=False):
        over_rounds.plot(curve.rounds_E, curve.values_E, color=colour, label=name)
        over_batches.plot(curve.cumulative_batches_R[curve.rounds_E], curve.values_E, color=colour)
    _finish(over_rounds, bound, target, "rounds")
    _finish(over_batches, bound, target, "local batches of the largest client, summed over rounds")
    over_rounds.set_ylabel("test accuracy")
    figure.legend(loc="outside upper right", ncols=len(curves), frameon=False)
    figure.suptitle(title, x=0.01, ha="left")
    kind = path.suffix.lstrip(".")
    atomic_write(path, lambda beside: figure.savefig(beside, format=kind, dpi=150))


def _finish(axes: Axes, bound: float, target: float, unit: str) -> None:
    axes.axhline(bound, color="black", linestyle="--", linewidth=1)
    axes.annotate("centralised", (0.01, bound), xycoords=("axes fraction", "data"), va="bottom")
    axes.axhline(target, color="gray", linestyle=":", linewidth=1)
    axes.annotate("target", (0.01, target), xycoords=("axes fraction", "data"), va="bottom", color="gray")
    axes.set_xlabel(unit)
    axes.set_xlim(left=0)
    axes.set_ylim(0, min(1.0, bound * 1.15))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.spines[["top", "right"]].set_visible(False)
