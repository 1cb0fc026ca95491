"""When a measured number agrees with the paper's, and how it is described."""

from __future__ import annotations

import math

import pytest

from manyeyes.papers.comparison import ComparedNumber
from manyeyes.papers.exhibit import RULE_TEXT, PrintedValue, is_within, tolerance
from manyeyes.papers.metric import AfterRounds, Multiple, RoundsTo
from manyeyes.papers.statistics import Statistic

AP = PrintedValue(62.0, "%", "", std=0.3)


@pytest.mark.parametrize(
    ("metric", "printed", "expected"),
    [
        (AfterRounds("macro_ap"), AP, 0.6),  # two standard deviations
        (AfterRounds("macro_ap"), PrintedValue(0.3, "%", "", std=0.0), 0.1),  # the last printed digit
        (AfterRounds("accuracy", 1000), PrintedValue(37.4, "%", ""), 2.0),
        (AfterRounds("user_mean"), PrintedValue(0.917, "", "", reading_error=0.005), 0.025),
        (RoundsTo(0.5), PrintedValue(669, "rounds", ""), 66.9),
        (Multiple(0.5), PrintedValue(4.1, "times", ""), 0.41),
        (Statistic("users"), PrintedValue(51414, "users", ""), 0.0),
        (Statistic("mean EMD"), PrintedValue(1.83, "", ""), 0.005),
        (Statistic("users with", "religion"), PrintedValue(1.4, "%", ""), 0.05),
        (Statistic("users with", "structure"), PrintedValue(87, "%", ""), 0.5),
    ],
    ids=str,
)
def test_each_kind_of_number_has_its_tolerance(metric: AfterRounds, printed: PrintedValue, expected: float) -> None:
    assert tolerance(metric, printed) == pytest.approx(expected)


def test_a_value_at_the_tolerance_is_within() -> None:
    assert is_within(AfterRounds("macro_ap"), AP, 62.6)
    assert is_within(AfterRounds("macro_ap"), AP, 61.4)
    assert not is_within(AfterRounds("macro_ap"), AP, 62.61)


def test_a_lower_bound_is_exceeded_or_never_reached() -> None:
    bound = PrintedValue(50_000, "rounds", "", is_lower_bound=True)
    assert is_within(RoundsTo(0.9), bound, math.inf)
    assert is_within(RoundsTo(0.9), bound, 50_001)
    assert not is_within(RoundsTo(0.9), bound, 49_000)


def test_numbers_are_compared_in_the_papers_unit() -> None:
    """Fractions of 1 become per cent: 61.5 and 62.1 have mean 61.8 and deviation 0.42."""
    line = ComparedNumber("FL-F-17", AfterRounds("macro_ap"), AP, (0.615, 0.621))
    assert line.cells() == ["FL-F-17", "macro_ap", "62 ± 0.3 %", "61.8 ± 0.42", "-0.2", "yes"]


def test_large_numbers_have_no_exponent() -> None:
    """Of 8,000 and 12,000 the mean is 10,000 and the deviation 4,000 / sqrt(2) = 2,828.4."""
    line = ComparedNumber("FedAvg", RoundsTo(0.5), PrintedValue(39_236, "rounds", ""), (8_000, 12_000))
    assert line.cells()[2:] == ["39,236 rounds", "10,000 ± 2,828", "-29,236", "no"]
    line = ComparedNumber("FedAvg", RoundsTo(0.5), PrintedValue(9, "rounds", ""), (999.96, 999.96))
    assert line.cells()[3:5] == ["1,000 ± 0", "+991"]
    assert ComparedNumber("FedAvg", AfterRounds("accuracy"), PrintedValue(31.3, "%", ""), (0.313,)).cells()[4] == "+0"


def test_a_seed_that_never_reaches_the_target_is_counted() -> None:
    number, bound = PrintedValue(4912, "rounds", ""), PrintedValue(50_000, "rounds", "", is_lower_bound=True)
    assert ComparedNumber("a", RoundsTo(0.9), number, (math.inf, math.inf)).cells()[3:] == ["never", "", "no"]
    assert ComparedNumber("a", RoundsTo(0.9), number, (math.inf, 700.0)).cells()[3:] == [
        "never with 1 of 2 seeds",
        "",
        "no",
    ]
    assert ComparedNumber("a", RoundsTo(0.9), bound, (math.inf, math.inf)).cells()[3:] == ["never", "", "yes"]
    assert ComparedNumber("a", RoundsTo(0.9), bound, (math.inf, 700.0)).cells()[5] == "no"


def test_a_run_that_is_not_the_papers_is_not_compared() -> None:
    line = ComparedNumber("FL-F-17", AfterRounds("macro_ap"), AP, (0.615,), is_paper_run=False)
    assert line.cells()[3:] == ["61.5", "", ""]
    assert (line.difference, line.is_within) == (None, None)


def test_a_target_that_is_never_reached_is_named() -> None:
    line = ComparedNumber("scratch", RoundsTo(0.9), PrintedValue(9005, "rounds", ""), (math.inf,))
    assert line.cells()[3:] == ["never", "", "no"]


def test_nothing_measured_is_an_empty_cell_or_diverged() -> None:
    assert ComparedNumber("one", AfterRounds("accuracy"), None, ()).describe() == ""
    assert ComparedNumber("one", AfterRounds("accuracy"), None, (), diverged=True).describe() == "diverged"


def test_the_rule_names_its_tolerances() -> None:
    for text in ("2 of the paper's standard deviations", "0.1 points", "2 points of an accuracy", "10% of a"):
        assert text in RULE_TEXT
