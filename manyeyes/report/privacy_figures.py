"""Figures of a privacy plan: what noise, epsilon and signal become with other cohorts and rounds."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from manyeyes.report.figures import COLOURS
from manyeyes.report.population_figures import Drawing


def draw_noise(cohorts: ArrayLike, noise: ArrayLike, cohort: int, chosen: float, epsilon: float) -> Drawing:
    """The noise that keeps the same promise with each cohort."""
    title = f"{cohort:,} users a round need a noise of {chosen:.3g} for epsilon {epsilon:.3g}"
    figure, axes = _start(title, "users a round", "noise on the sum, in clips")
    _line(axes, cohorts, noise, cohort, chosen, marker="o")
    axes.set(xscale="log", yscale="log")
    _ticks(axes.xaxis)
    _ticks(axes.yaxis)
    caption = (
        "The least noise that keeps epsilon, delta and the number of rounds; divided by the users a round, it is the "
        "noise on their mean. Black: the plan."
    )
    return Drawing(title, figure, caption)


def draw_epsilon(rounds: ArrayLike, epsilon: ArrayLike, last: int, spent: float, noise: float) -> Drawing:
    """What has been spent after each round."""
    title = f"With a noise of {noise:.3g}, {last:,} rounds spend epsilon {spent:.3g}"
    figure, axes = _start(title, "rounds", "epsilon spent")
    _line(axes, rounds, epsilon, last, spent)
    axes.set(xlim=(0, last * 1.04), ylim=(0, spent * 1.1 or 1))
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    caption = "Epsilon at the same delta, had the training stopped after so many rounds. Black: the plan."
    return Drawing(title, figure, caption)


def draw_signal(cohorts: ArrayLike, signal: ArrayLike, cohort: int, chosen: float, parameters: int) -> Drawing:
    """Clip against the length of the noise on the mean."""
    title = f"With {cohort:,} users a round, signal to noise is at most {chosen:.2g}"
    figure, axes = _start(title, "users a round", "clip / length of the noise on the mean")
    _line(axes, cohorts, signal, cohort, chosen, marker="o")
    axes.set_xscale("log")
    _ticks(axes.xaxis)
    axes.set_ylim(bottom=0)
    caption = (
        f"The longest that a mean of clipped updates can be, against the length of the noise on its {parameters:,} "
        "numbers; each cohort with the noise that keeps the promise. Black: the plan."
    )
    return Drawing(title, figure, caption)


def _start(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, 4.0), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1), facecolor="white")
    axes = figure.subplots()
    axes.set_title(title, fontsize=11, loc="left")
    axes.set(xlabel=x, ylabel=y)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axes: Axes, x: ArrayLike, y: ArrayLike, chosen_x: float, chosen_y: float, marker: str = "") -> None:
    axes.plot(x, y, color=COLOURS[0], marker=marker, markersize=4)
    axes.plot([chosen_x], [chosen_y], "o", color="black", markersize=8)


def _ticks(axis: Axis) -> None:
    """1, 2 and 5 of each power of ten where there are few."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_formatter(NullFormatter())


def _plain(value: float, _: int) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"
