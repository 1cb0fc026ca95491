"""Figures of runs, as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from manyeyes.files import write_whole
from manyeyes.metrics import Curve

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # told apart by all eyes


def draw_curves(path: Path, curves: Mapping[str, Curve], bound: float, target: float, title: str) -> None:
    """Accuracy over rounds and over the batches of the largest client, below the centralised bound."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    over_rounds, over_batches = figure.subplots(1, 2, sharey=True)
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        over_rounds.plot(curve.rounds_E, curve.values_E, color=colour, label=name)
        over_batches.plot(curve.spent_R[curve.rounds_E], curve.values_E, color=colour)
    _finish(over_rounds, bound, target, "rounds")
    _finish(over_batches, bound, target, "local batches of the largest client, summed over rounds")
    over_rounds.set_ylabel("test accuracy")
    figure.legend(loc="outside upper right", ncols=len(curves), frameon=False)
    figure.suptitle(title, x=0.01, ha="left")
    kind = path.suffix.lstrip(".")
    write_whole(path, lambda beside: figure.savefig(beside, format=kind, dpi=150))


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
