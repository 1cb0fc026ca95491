"""How far the evaluation that counts is from the round that is meant: a run is not evaluated after every round."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from manyeyes.metrics import Curve
from manyeyes.papers.metric import UNIT_FRACTION, AfterRounds, Metric, Multiple, RoundsTo, RunOutcome, WithinBatches

MAX_GAP_FRACTION = 0.1  # of the rounds that are meant: a number measured further away is not compared with the paper


@dataclass(frozen=True)
class EvaluationGap:
    """The rounds between the evaluation that counts and the round that is meant."""

    text: str
    rounds: int
    fraction: float  # of the round that is meant


def before_budget(evaluated: int, budget: int) -> EvaluationGap:
    """Return the gap between the last evaluation within a budget and the last round within it."""
    rounds = budget - evaluated
    return EvaluationGap(f"measured at round {evaluated:,} of {budget:,}", rounds, rounds / max(1, budget))


def between_evaluations(below: int, reached: int) -> EvaluationGap:
    """Return the gap between the first evaluation that reached a target and the one before, which did not."""
    rounds = reached - below - 1
    return EvaluationGap(f"reached between rounds {below:,} and {reached:,}", rounds, rounds / reached)


def evaluation_gap(metric: Metric, outcome: RunOutcome) -> EvaluationGap | None:
    """Return the gap of a metric of a run; None if the evaluation is exact, or nothing was measured."""
    if metric.compute(outcome) is None:
        return None
    gaps: list[EvaluationGap | None] = []
    match metric:
        case AfterRounds(name, int(rounds)):
            gaps = [_budget_gap(outcome.curve(name), rounds)]
        case WithinBatches(name, batches):
            curve = outcome.curve(name)
            last_round = int(np.searchsorted(curve.cumulative_batches_R, batches, side="right")) - 1
            gaps = [_budget_gap(curve, last_round)]
        case RoundsTo(fraction):
            gaps = [_target_gap(fraction, outcome)]
        case Multiple(fraction) if fraction != UNIT_FRACTION:  # of the two numbers that it is computed from
            gaps = [_target_gap(fraction, outcome), _target_gap(UNIT_FRACTION, outcome)]
    return max((gap for gap in gaps if gap and gap.rounds), key=lambda gap: gap.fraction, default=None)


def describe(gaps: Iterable[EvaluationGap | None]) -> str:
    """Return the gap that all seeds of a row share, or the largest one; empty if there is none."""
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return ""
    largest = max(known, key=lambda gap: gap.rounds)
    verb = largest.text.partition(" ")[0]
    return largest.text if len(set(known)) == 1 else f"{verb} up to {largest.rounds:,} rounds before"


def all_close(gaps: Iterable[EvaluationGap | None]) -> bool:
    """Return whether every gap is small enough to compare the number with the paper's."""
    return all(gap is None or gap.fraction <= MAX_GAP_FRACTION for gap in gaps)


def _budget_gap(curve: Curve, last_round: int) -> EvaluationGap:
    return before_budget(int(curve.rounds_E[curve.rounds_E <= last_round][-1]), last_round)


def _target_gap(fraction: float, outcome: RunOutcome) -> EvaluationGap | None:
    reached = RoundsTo(fraction).compute(outcome)
    if reached is None or not math.isfinite(reached):
        return None
    rounds_E = outcome.curve("accuracy").rounds_E
    earlier_E = rounds_E[rounds_E < reached]
    return between_evaluations(int(earlier_E[-1]), int(reached)) if len(earlier_E) else None
