"""When a measured number agrees with the paper's: a rule for each kind of number, and the text that states it."""

from manyeyes.papers.exhibit import PrintedValue
from manyeyes.papers.metric import Metric
from manyeyes.papers.statistics import Statistic

MAX_DEVIATIONS = 2  # of the paper's own standard deviations, where it prints them
MIN_POINTS = 0.1  # percentage points: the last printed digit
ACCURACY_POINTS = 2.0  # percentage points, for a single run
ROUNDS_RTOL = 0.1  # of the paper's rounds, and of multiples of rounds
RULE_TEXT = (
    f"Within: at most {MAX_DEVIATIONS} of the paper's standard deviations (and {MIN_POINTS} points) where it prints "
    f"them; otherwise {ACCURACY_POINTS:g} points of an accuracy, plus the reading error of a number read off a plot; "
    f"{ROUNDS_RTOL:.0%} of a number of rounds; and what is counted in a dataset must round to the printed number."
)


def tolerance(metric: Metric | Statistic, printed: PrintedValue) -> float:
    """Return how far the measured value may be from the paper's, in the paper's unit."""
    if isinstance(metric, Statistic):
        decimals = len(f"{printed.value:g}".partition(".")[2])
        return 0.5 * 10**-decimals if decimals or printed.unit == "%" else 0.0
    if printed.std is not None:
        return max(MIN_POINTS, MAX_DEVIATIONS * printed.std)
    if printed.unit in ("rounds", "times"):
        return ROUNDS_RTOL * printed.value
    return ACCURACY_POINTS * (1 if printed.unit == "%" else 0.01) + (printed.reading_error or 0.0)


def is_within(metric: Metric | Statistic, printed: PrintedValue, measured: float) -> bool:
    """Return whether a measured value, in the paper's unit, agrees with the paper's."""
    if printed.is_lower_bound:
        return measured > printed.value
    return abs(measured - printed.value) <= tolerance(metric, printed) + 1e-9
