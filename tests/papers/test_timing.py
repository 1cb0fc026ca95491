"""Metrics of runs that were not evaluated at the paper's budget, against values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manyeyes.papers.comparison import ComparedNumber
from manyeyes.papers.exhibit import PrintedValue
from manyeyes.papers.metric import AfterRounds, Metric, Multiple, RoundsTo, RunOutcome, WithinBatches, relative_after
from manyeyes.papers.timing import EvaluationGap, before_budget, between_evaluations, describe, evaluation_gap
from manyeyes.training.run_files import Event

# Evaluated after 0, 4 and 8 rounds, of 3 batches each.
SCORES = {0: 0.0, 4: 0.2, 8: 0.6}
EVENTS: list[Event] = [
    {"round": r} | ({"max_client_batches": 3} if r else {}) | ({"accuracy": SCORES[r]} if r in SCORES else {})
    for r in range(9)
]
OUTCOME = RunOutcome(EVENTS, centralized_baseline=1.0)


@pytest.mark.parametrize(
    ("metric", "gap"),
    [
        (AfterRounds("accuracy", 4), None),
        (AfterRounds("accuracy", 7), before_budget(4, 7)),
        (AfterRounds("accuracy", 9), None),  # the run is shorter: nothing is measured
        (relative_after(5), before_budget(4, 5)),
        (relative_after(), None),
        (AfterRounds("accuracy"), None),
        (WithinBatches("accuracy", 12), None),
        (WithinBatches("accuracy", 14), None),  # four rounds had 12, and a fifth would be too many
        (WithinBatches("accuracy", 23), before_budget(4, 7)),
        (RoundsTo(0.5), between_evaluations(4, 8)),
        (RoundsTo(0.9), None),  # it is never reached
        (Multiple(0.5), between_evaluations(0, 4)),  # the gap of its unit is larger
        (Multiple(0.1), None),
    ],
)
def test_an_evaluation_at_another_round_is_a_gap(metric: Metric, gap: EvaluationGap | None) -> None:
    assert evaluation_gap(metric, OUTCOME) == gap


def test_a_target_reached_one_round_later_or_before_the_first_has_no_gap() -> None:
    outcome = RunOutcome(
        [{"round": 0, "accuracy": 0.1}, {"round": 1, "accuracy": 0.2, "max_client_batches": 1}], centralized_baseline=1
    )
    assert evaluation_gap(RoundsTo(0.2), outcome) is None
    assert evaluation_gap(RoundsTo(0.1), outcome) is None


def test_seeds_with_different_gaps_are_described_by_the_largest() -> None:
    assert describe([None, None]) == ""
    assert describe([before_budget(1990, 2000)]) == "measured at round 1,990 of 2,000"
    assert describe([before_budget(1990, 2000)] * 2) == "measured at round 1,990 of 2,000"
    assert describe([before_budget(1990, 2000), None, before_budget(1995, 2001)]) == "measured up to 10 rounds before"
    assert describe([between_evaluations(410, 420)]) == "reached between rounds 410 and 420"
    assert describe([between_evaluations(410, 420), between_evaluations(400, 410)]) == "reached up to 9 rounds before"


def test_a_number_measured_more_than_a_tenth_of_the_rounds_away_is_not_compared() -> None:
    line = ComparedNumber(
        "one", AfterRounds("accuracy", 1000), PrintedValue(50, "%", ""), (0.505,), gaps=(before_budget(900, 1000),)
    )
    assert line.cells()[3:] == ["50.5 (measured at round 900 of 1,000)", "+0.5", "yes"]
    far = replace(line, gaps=(before_budget(899, 1000),), best_run="lr_1")
    assert far.cells()[3:] == ["50.5 (lr_1; measured at round 899 of 1,000, too far to compare)", "", ""]
    assert replace(far, is_paper_run=False).cells()[3] == "50.5 (lr_1; measured at round 899 of 1,000)"
