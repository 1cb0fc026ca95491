"""When a measured number is the paper's: a rule for each kind of number, and the sentence that says it."""

from manyeyes.papers.exhibit import PrintedValue
from manyeyes.papers.metric import Metric
from manyeyes.papers.statistics import Statistic

DEVIATIONS = 2  # of the paper's own, where it prints them
LEAST = 0.1  # and at least so many points, its last printed digit
POINTS = 2.0  # of a single run's accuracy, in per cent
ROUNDS_RTOL = 0.1  # of the paper's rounds, and of multiples of them
RULE_TEXT = (
    f"Within: at most {DEVIATIONS} of the paper's standard deviations away (and {LEAST} points) where it prints them; "
    f"else {POINTS:g} points of an accuracy, more by what a number read off a plot may be wrong; {ROUNDS_RTOL:.0%} of a "
    "number of rounds; and what is counted in data must round to what is printed."
)


def tolerance(measure: Metric | Statistic, number: PrintedValue) -> float:
    """How far the measured value may be from the paper's, in the paper's unit."""
    if isinstance(measure, Statistic):
        decimals = len(f"{number.value:g}".partition(".")[2])
        return 0.5 * 10**-decimals if decimals or number.unit == "%" else 0.0
    if number.spread is not None:
        return max(LEAST, DEVIATIONS * number.spread)
    if number.unit in ("rounds", "times"):
        return ROUNDS_RTOL * number.value
    return POINTS * (1 if number.unit == "%" else 0.01) + (number.tolerance or 0.0)


def is_within(measure: Metric | Statistic, number: PrintedValue, measured: float) -> bool:
    """Whether a measured value, in the paper's unit, is the paper's."""
    if number.beyond:
        return measured > number.value
    return abs(measured - number.value) <= tolerance(measure, number) + 1e-9
