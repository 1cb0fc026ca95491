"""When a measure was really taken: a run is not evaluated after every round, and a paper's budget may fall between."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from manyeyes.papers.metric import FIRST, AfterRounds, Metric, Multiple, Relative, RoundsTo, RunOutcome, WithinBatches

NEAR = 0.1  # of the rounds that were meant: what is measured further away is not compared with the paper


@dataclass(frozen=True)
class BeforeBudget:
    """The last evaluation within a budget, and the last round that is within it."""

    at: int
    meant: int

    def __str__(self) -> str:
        return f"measured at round {self.at:,} of {self.meant:,}"

    @property
    def rounds(self) -> int:
        return self.meant - self.at

    @property
    def is_close(self) -> bool:
        return self.rounds <= NEAR * self.meant


@dataclass(frozen=True)
class BetweenEvaluations:
    """The first evaluation that reached a target, and the one before it, which had not."""

    below: int
    at: int

    def __str__(self) -> str:
        return f"reached between rounds {self.below:,} and {self.at:,}"

    @property
    def rounds(self) -> int:
        return self.at - self.below - 1

    @property
    def is_close(self) -> bool:
        return self.rounds <= NEAR * self.at


EvaluationGap = BeforeBudget | BetweenEvaluations


def evaluation_gap(measure: Metric, outcome: RunOutcome) -> EvaluationGap | None:
    """How far the evaluation that counts is from what is meant; None where it is that, or nothing was measured."""
    found: EvaluationGap | None
    if measure.compute(outcome) is None or measure == Multiple(FIRST):  # which is 1, whenever it was reached
        return None
    if isinstance(measure, Multiple):  # as far as either of the two that it is of
        both = [one for share in (measure.fraction, FIRST) if (one := _between(share, outcome)) is not None]
        found = max(both, key=lambda one: one.rounds / one.at, default=None)
    elif isinstance(measure, RoundsTo):
        found = _between(measure.fraction, outcome)
    elif isinstance(measure, AfterRounds | WithinBatches) or (isinstance(measure, Relative) and measure.rounds):
        found = _early(measure, outcome)
    else:
        found = None
    return found if found is not None and found.rounds else None


def describe(lags: Iterable[EvaluationGap | None]) -> str:
    """Of the seeds of a row: the one way in which they all are, or the farthest."""
    some = [one for one in lags if one is not None]
    if not some:
        return ""
    worst = max(some, key=lambda one: one.rounds)
    what = "measured" if isinstance(worst, BeforeBudget) else "reached"
    return str(worst) if len(set(some)) == 1 else f"{what} up to {worst.rounds:,} rounds before"


def all_close(lags: Iterable[EvaluationGap | None]) -> bool:
    return all(one is None or one.is_close for one in lags)


def _early(measure: AfterRounds | WithinBatches | Relative, outcome: RunOutcome) -> BeforeBudget:
    curve = outcome.curve("accuracy" if isinstance(measure, Relative) else measure.metric)
    if isinstance(measure, WithinBatches):
        meant = int(np.searchsorted(curve.cumulative_batches_R, measure.batches, side="right")) - 1
    else:
        meant = measure.rounds
    return BeforeBudget(int(curve.rounds_E[curve.rounds_E <= meant][-1]), meant)


def _between(share: float, outcome: RunOutcome) -> BetweenEvaluations | None:
    at = RoundsTo(share).compute(outcome)
    if at is None or not math.isfinite(at):
        return None
    earlier_E = outcome.curve("accuracy").rounds_E
    earlier_E = earlier_E[earlier_E < at]
    return BetweenEvaluations(int(earlier_E[-1]), int(at)) if len(earlier_E) else None
