"""When a measured number is the paper's, and what of it is told."""

from __future__ import annotations

import math

import pytest

from manyeyes.papers.comparison import Line
from manyeyes.papers.item import Number
from manyeyes.papers.margin import RULE, margin, within
from manyeyes.papers.measure import AfterRounds, Final, Multiple, RoundsTo
from manyeyes.papers.statistic import Count, LabelUsers

AP = Number(62.0, "%", "", spread=0.3)


@pytest.mark.parametrize(
    ("measure", "number", "expected"),
    [
        (Final("macro_ap"), AP, 0.6),  # two deviations
        (Final("macro_ap"), Number(0.3, "%", "", spread=0.0), 0.1),  # its last digit
        (AfterRounds("accuracy", 1000), Number(37.4, "%", ""), 2.0),
        (Final("user_mean"), Number(0.917, "", "", tolerance=0.005), 0.025),
        (RoundsTo(0.5), Number(669, "rounds", ""), 66.9),
        (Multiple(0.5), Number(4.1, "times", ""), 0.41),
        (Count("users"), Number(51414, "users", ""), 0.0),
        (Count("mean EMD"), Number(1.83, "", ""), 0.005),
        (LabelUsers("religion"), Number(1.4, "%", ""), 0.05),
        (LabelUsers("structure"), Number(87, "%", ""), 0.5),
    ],
    ids=str,
)
def test_a_kind_of_number_has_its_margin(measure: Final, number: Number, expected: float) -> None:
    assert margin(measure, number) == pytest.approx(expected)


def test_a_value_on_the_margin_is_within() -> None:
    assert within(Final("macro_ap"), AP, 62.6)
    assert within(Final("macro_ap"), AP, 61.4)
    assert not within(Final("macro_ap"), AP, 62.61)


def test_what_the_paper_says_is_larger_is_larger_or_never_reached() -> None:
    beyond = Number(50_000, "rounds", "", beyond=True)
    assert within(RoundsTo(0.9), beyond, math.inf)
    assert within(RoundsTo(0.9), beyond, 50_001)
    assert not within(RoundsTo(0.9), beyond, 49_000)


def test_a_line_compares_in_the_papers_unit() -> None:
    """Shares of 1 become per cent: 61.5 and 62.1 have mean 61.8 and deviation 0.42."""
    line = Line("FL-F-17", Final("macro_ap"), AP, (0.615, 0.621))
    assert line.cells() == ("FL-F-17", "macro_ap", "62 ± 0.3 %", "61.8 ± 0.42", "-0.2", "yes")


def test_large_numbers_have_no_exponent() -> None:
    """Of 8,000 and 12,000 the mean is 10,000 and the deviation 4,000 / sqrt(2) = 2,828.4."""
    line = Line("FedAvg", RoundsTo(0.5), Number(39_236, "rounds", ""), (8_000, 12_000))
    assert line.cells()[2:] == ("39,236 rounds", "10,000 ± 2,828", "-29,236", "no")
    line = Line("FedAvg", RoundsTo(0.5), Number(9, "rounds", ""), (999.96, 999.96))
    assert line.cells()[3:5] == ("1,000 ± 0", "+991")
    assert Line("FedAvg", Final("accuracy"), Number(31.3, "%", ""), (0.313,)).cells()[4] == "+0"


def test_a_seed_that_never_gets_there_is_told_apart_from_all() -> None:
    number, beyond = Number(4912, "rounds", ""), Number(50_000, "rounds", "", beyond=True)
    assert Line("a", RoundsTo(0.9), number, (math.inf, math.inf)).cells()[3:] == ("never", "", "no")
    assert Line("a", RoundsTo(0.9), number, (math.inf, 700.0)).cells()[3:] == ("never with 1 of 2 seeds", "", "no")
    assert Line("a", RoundsTo(0.9), beyond, (math.inf, math.inf)).cells()[3:] == ("never", "", "yes")
    assert Line("a", RoundsTo(0.9), beyond, (math.inf, 700.0)).cells()[5] == "no"


def test_what_is_not_the_papers_run_is_not_compared() -> None:
    line = Line("FL-F-17", Final("macro_ap"), AP, (0.615,), real=False)
    assert line.cells()[3:] == ("61.5", "", "")
    assert (line.difference, line.within) == (None, None)


def test_rounds_that_are_never_reached_are_told_as_such() -> None:
    line = Line("scratch", RoundsTo(0.9), Number(9005, "rounds", ""), (math.inf,))
    assert line.cells()[3:] == ("never", "", "no")


def test_nothing_measured_is_an_empty_cell_or_diverged() -> None:
    assert Line("one", Final("accuracy"), None, ()).words() == ""
    assert Line("one", Final("accuracy"), None, (), diverged=True).words() == "diverged"


def test_the_rule_says_its_numbers() -> None:
    for word in ("2 of the paper's standard deviations", "0.1 points", "2 points of an accuracy", "10% of a"):
        assert word in RULE
