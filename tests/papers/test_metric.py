"""The metrics of the papers, against values computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from manyeyes.papers.metric import (
    AfterRounds,
    ClassMetric,
    Frequency,
    Multiple,
    RoundsTo,
    RunOutcome,
    UserQuantile,
    WithinBatches,
    relative_after,
    scale_budget,
)
from manyeyes.training.run_files import Event
from manyeyes.training.run_reader import read_run

# Accuracy 0.1, 0.2, 0.5, 0.4 after 0, 1, 2, 3 rounds, whose largest clients trained on 3, 4, 5 batches.
EVENTS: list[Event] = [
    {"round": 0, "accuracy": 0.1},
    {"round": 1, "accuracy": 0.2, "max_client_batches": 3},
    {"round": 2, "accuracy": 0.5, "max_client_batches": 4},
    {"round": 3, "accuracy": 0.4, "max_client_batches": 5},
]
OUTCOME = RunOutcome(EVENTS, centralized_baseline=0.5)


def test_the_final_value_is_the_last() -> None:
    assert AfterRounds("accuracy").compute(OUTCOME) == 0.4


@pytest.mark.parametrize(("rounds", "value"), [(0, 0.1), (2, 0.5), (3, 0.4), (4, None)])
def test_accuracy_at_a_round_is_none_where_the_run_is_shorter(rounds: int, value: float | None) -> None:
    assert AfterRounds("accuracy", rounds).compute(OUTCOME) == value


@pytest.mark.parametrize(("batches", "value"), [(2, 0.1), (3, 0.2), (6, 0.2), (7, 0.5), (12, 0.4), (13, None)])
def test_accuracy_at_batches_counts_those_of_the_largest_client(batches: int, value: float | None) -> None:
    assert WithinBatches("accuracy", batches).compute(OUTCOME) == value


def test_relative_accuracy_is_a_fraction_of_the_centralized_one() -> None:
    assert relative_after().compute(OUTCOME) == pytest.approx(0.8)
    assert relative_after(1).compute(OUTCOME) == pytest.approx(0.4)
    assert relative_after(4).compute(OUTCOME) is None


@pytest.mark.parametrize("baseline", [None, 0.0])
def test_nothing_is_relative_to_a_missing_baseline_or_to_an_accuracy_of_zero(baseline: float | None) -> None:
    outcome = replace(OUTCOME, centralized_baseline=baseline)
    assert relative_after().compute(outcome) is None
    assert RoundsTo(0.1).compute(outcome) is None
    assert Multiple(0.9).compute(outcome) is None


@pytest.mark.parametrize(("fraction", "rounds"), [(0.1, 0), (0.3, 1), (0.9, 2), (1.0, 2), (1.1, math.inf)])
def test_rounds_to_a_relative_accuracy_are_those_before_it_is_first_reached(
    fraction: float, rounds: int | None
) -> None:
    assert RoundsTo(fraction).compute(OUTCOME) == rounds


def test_a_multiple_is_of_the_rounds_to_ten_per_cent() -> None:
    later = RunOutcome([{"round": 0, "accuracy": 0.0}, *EVENTS[1:]], centralized_baseline=0.5)
    assert RoundsTo(0.1).compute(later) == 1
    assert Multiple(0.9).compute(later) == 2
    assert Multiple(1.1).compute(later) is None
    assert Multiple(0.9).compute(OUTCOME) is None  # reached before the first round: a multiple of 0 rounds


def test_the_score_of_a_class_and_its_correlation_with_the_count() -> None:
    outcome = RunOutcome(
        [], {"cat": 0.2, "dog": 0.4, "emu": 0.6, "none": 0.0}, {"cat": 10, "dog": 100, "emu": 1000, "none": 0}
    )
    assert ClassMetric("dog").compute(outcome) == 0.4
    assert ClassMetric("fox").compute(outcome) is None
    assert ClassMetric("none").compute(outcome) is None  # no evaluated example has the class: its AP is unknown, not 0
    assert Frequency().compute(outcome) == pytest.approx(1)  # without the class that no example has
    assert Frequency().compute(RunOutcome([], {"cat": 0.2}, {"cat": 10})) is None


def test_quantiles_of_users() -> None:
    outcome = RunOutcome([], user_scores=(0.0, 0.5, 1.0))
    assert [UserQuantile(percent).compute(outcome) for percent in (0, 25, 50, 100)] == [0, 0.25, 0.5, 1]
    assert UserQuantile(50).compute(RunOutcome([])) is None


def test_a_budget_is_scaled_with_the_rounds_and_other_metrics_are_not() -> None:
    assert scale_budget(AfterRounds("accuracy", 5000), 0.01) == AfterRounds("accuracy", 50)
    assert scale_budget(WithinBatches("accuracy", 25_000), 0.01) == WithinBatches("accuracy", 250)
    assert scale_budget(AfterRounds("accuracy", 25), 0.1) == scale_budget(AfterRounds("accuracy", 1000), 0.0001)
    assert scale_budget(relative_after(2500), 0.0001) == relative_after(20)
    assert scale_budget(relative_after(10), 0.0001) == relative_after(10)
    assert scale_budget(relative_after(), 0.01) == relative_after()
    assert scale_budget(ClassMetric("dog"), 0.01) == ClassMetric("dog")


def test_an_outcome_is_read_from_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"round": 0, "macro_ap": 0.25}\n')
    (tmp_path / "per_class.csv").write_text(
        "class,examples,ap,precision,recall,f1,ap_200\ncat,3,0.5,1,1,1,0.4\ndog,1,0.25,0,0,0,0.125\n"
    )
    (tmp_path / "per_user.csv").write_text("user,examples,ap\nann,2,0.75\n")
    outcome = RunOutcome.from_record(read_run(tmp_path))
    assert AfterRounds("macro_ap").compute(outcome) == 0.25
    assert outcome.class_scores == {"cat": 0.4, "dog": 0.125}
    assert outcome.exact_class_ap == {"cat": 0.5, "dog": 0.25}
    assert outcome.class_counts == {"cat": 3, "dog": 1}
    assert (outcome.user_scores, outcome.centralized_baseline) == ((0.75,), None)
