"""Scales of charts: from values to pixels, and the round values at which there are ticks."""

import math
from dataclasses import dataclass

from manyeyes.report.chart import Axis

POINT_MARGIN = 0.03  # of the range, so that points at its ends are whole
MIN_LOG_RATIO = 8  # a smaller range on a logarithmic axis has evenly spaced ticks
MAX_TICK_RATIO = 1.5  # of the ticks of a logarithmic axis to the requested number


@dataclass(frozen=True)
class Scale:
    """The range of an axis, and where it is in the picture."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high, position = self.low, self.high, value
        if self.axis.log:
            low, high, position = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self.start + (position - low) * (self.end - self.start) / (high - low)

    def can_show(self, value: float) -> bool:
        return value > 0 or not self.axis.log

    def ticks(self, count: int) -> list[tuple[float, str]]:
        candidates = self.axis.ticks or ticks(self.low, self.high, count, self.axis.log, self.axis.integer)
        values = [value for value in candidates if self.low <= value <= self.high]
        return [(self(value), f"{100 * value:.4g} %" if self.axis.percent else f"{value:,.10g}") for value in values]


def axis_range(axis: Axis, values: list[float], margin: float = 0.0) -> tuple[float, float]:
    """Return the ends of an axis: those it was given, or those of the values with a margin."""
    if axis.log:
        values = [value for value in values if value > 0] or [1.0, 10.0]
        low, high = min(values), max(values)
        factor = 2.0 if low == high else (high / low) ** margin
        low, high = low / factor, high * factor
    else:
        low, high = min(values, default=0.0), max(values, default=1.0)
        room = (high - low) * margin or (0.5 if low == high else 0.0)
        low, high = (0.0 if 0 <= low < room or low == 0 else low - room), high + room
    low, high = low if axis.low is None else axis.low, high if axis.high is None else axis.high
    return (low, high) if high > low else (low, low + 1)


def ticks(low: float, high: float, count: int, log: bool = False, integer: bool = False) -> list[float]:
    """Return about `count` round values between two values, or fewer that are whole numbers."""
    if log and high / low >= MIN_LOG_RATIO:
        decades = math.log10(high / low)
        factors = [1, 2, 5] if 3 * decades <= MAX_TICK_RATIO * count else [1]
        jump = max(1, math.ceil(decades / count))
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1, jump)
        values = [factor * 10.0**power for power in powers for factor in factors]
        return [value for value in values if low * 0.9999 <= value <= high * 1.0001]
    smallest_step = 0.75 * (high - low) / count
    power = 10.0 ** math.floor(math.log10(smallest_step))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= smallest_step), 10 * power)
    step = max(1.0, step) if integer else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]
