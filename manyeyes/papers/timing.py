"""When a measure was really taken: a run is not evaluated after every round, and a paper's budget may fall between."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from manyeyes.papers.measure import FIRST, AfterRounds, Measure, Multiple, Outcome, Relative, RoundsTo, WithinBatches

NEAR = 0.1  # of the rounds that were meant: what is measured further away is not compared with the paper


@dataclass(frozen=True)
class Early:
    """The last evaluation within a budget, and the last round that is within it."""

    at: int
    meant: int

    def __str__(self) -> str:
        return f"measured at round {self.at:,} of {self.meant:,}"

    @property
    def by(self) -> int:
        return self.meant - self.at

    @property
    def near(self) -> bool:
        return self.by <= NEAR * self.meant


@dataclass(frozen=True)
class Between:
    """The first evaluation that reached a target, and the one before it, which had not."""

    below: int
    at: int

    def __str__(self) -> str:
        return f"reached between rounds {self.below:,} and {self.at:,}"

    @property
    def by(self) -> int:
        return self.at - self.below - 1

    @property
    def near(self) -> bool:
        return self.by <= NEAR * self.at


Lag = Early | Between


def lag(measure: Measure, outcome: Outcome) -> Lag | None:
    """How far the evaluation that counts is from what is meant; None where it is that, or nothing was measured."""
    found: Lag | None
    if measure.of(outcome) is None or measure == Multiple(FIRST):  # which is 1, whenever it was reached
        return None
    if isinstance(measure, Multiple):  # as far as either of the two that it is of
        both = [one for share in (measure.share, FIRST) if (one := _between(share, outcome)) is not None]
        found = max(both, key=lambda one: one.by / one.at, default=None)
    elif isinstance(measure, RoundsTo):
        found = _between(measure.share, outcome)
    elif isinstance(measure, AfterRounds | WithinBatches) or (isinstance(measure, Relative) and measure.rounds):
        found = _early(measure, outcome)
    else:
        found = None
    return found if found is not None and found.by else None


def told(lags: Iterable[Lag | None]) -> str:
    """Of the seeds of a row: the one way in which they all are, or the farthest."""
    some = [one for one in lags if one is not None]
    if not some:
        return ""
    worst = max(some, key=lambda one: one.by)
    what = "measured" if isinstance(worst, Early) else "reached"
    return str(worst) if len(set(some)) == 1 else f"{what} up to {worst.by:,} rounds before"


def near(lags: Iterable[Lag | None]) -> bool:
    return all(one is None or one.near for one in lags)


def _early(measure: AfterRounds | WithinBatches | Relative, outcome: Outcome) -> Early:
    curve = outcome.curve("accuracy" if isinstance(measure, Relative) else measure.metric)
    if isinstance(measure, WithinBatches):
        meant = int(np.searchsorted(curve.spent_R, measure.batches, side="right")) - 1
    else:
        meant = measure.rounds
    return Early(int(curve.rounds_E[curve.rounds_E <= meant][-1]), meant)


def _between(share: float, outcome: Outcome) -> Between | None:
    at = RoundsTo(share).of(outcome)
    if at is None or not math.isfinite(at):
        return None
    earlier_E = outcome.curve("accuracy").rounds_E
    earlier_E = earlier_E[earlier_E < at]
    return Between(int(earlier_E[-1]), int(at)) if len(earlier_E) else None
