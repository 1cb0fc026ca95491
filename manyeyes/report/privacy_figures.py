"""Figures of a privacy plan: what noise, epsilon and signal become with other cohorts and rounds."""

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike

from manyeyes.report.figures import COLORS, CaptionedFigure, format_tick, logarithmic, new_axes


def draw_noise(cohorts: ArrayLike, noise: ArrayLike, cohort: int, chosen: float, epsilon: float) -> CaptionedFigure:
    """The noise that keeps the same promise with each cohort."""
    title = f"{cohort:,} users a round need a noise of {chosen:.3g} for epsilon {epsilon:.3g}"
    figure, axes = new_axes(title, "users a round", "noise on the sum, in clips")
    _line(axes, cohorts, noise, cohort, chosen, marker="o")
    logarithmic(axes, "x")
    logarithmic(axes, "y")
    caption = (
        "The least noise that keeps epsilon, delta and the number of rounds; divided by the users a round, it is the "
        "noise on their mean. Black: the plan."
    )
    return CaptionedFigure(title, figure, caption)


def draw_epsilon(rounds: ArrayLike, epsilon: ArrayLike, last: int, spent: float, noise: float) -> CaptionedFigure:
    """What has been spent after each round."""
    title = f"With a noise of {noise:.3g}, {last:,} rounds spend epsilon {spent:.3g}"
    figure, axes = new_axes(title, "rounds", "epsilon spent")
    _line(axes, rounds, epsilon, last, spent)
    axes.set(xlim=(0, last * 1.04), ylim=(0, spent * 1.1 or 1))
    axes.xaxis.set_major_formatter(FuncFormatter(format_tick))
    caption = "Epsilon at the same delta, had the training stopped after so many rounds. Black: the plan."
    return CaptionedFigure(title, figure, caption)


def draw_signal(cohorts: ArrayLike, signal: ArrayLike, cohort: int, chosen: float, parameters: int) -> CaptionedFigure:
    """Clip against the length of the noise on the mean."""
    title = f"With {cohort:,} users a round, signal to noise is at most {chosen:.2g}"
    figure, axes = new_axes(title, "users a round", "clip / length of the noise on the mean")
    _line(axes, cohorts, signal, cohort, chosen, marker="o")
    logarithmic(axes, "x")
    axes.set_ylim(bottom=0)
    caption = (
        f"The longest that a mean of clipped updates can be, against the length of the noise on its {parameters:,} "
        "numbers; each cohort with the noise that keeps the promise. Black: the plan."
    )
    return CaptionedFigure(title, figure, caption)


def _line(axes: Axes, x: ArrayLike, y: ArrayLike, chosen_x: float, chosen_y: float, marker: str = "") -> None:
    axes.plot(x, y, color=COLORS[0], marker=marker, markersize=4)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.plot([chosen_x], [chosen_y], "o", color="black", markersize=8)
