"""Learning curves: results by number of rounds and of batches (Hsu et al. 2020, section 6, table 2)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints, as_array, as_ints


def relative_accuracy(federated: float, centralized: float) -> float:
    if not centralized > 0:
        raise ValueError(f"the centralized accuracy is {centralized}: give one above 0")
    return federated / centralized


@dataclass(frozen=True, eq=False)
class Curve:
    """The evaluations of one run: the round, the value, and the batches trained until then.

    A round costs the local batches of its largest client, a proxy for time, since clients train in parallel.
    """

    rounds_E: Ints
    values_E: Floats
    cumulative_batches_R: Ints  # after 0, 1, ... rounds; 0 if they are unknown
    has_batches: bool = True  # whether the batches are known

    @staticmethod
    def from_points(rounds: Any, values: Any, batches: Any, has_batches: bool = True) -> "Curve":
        """Make a curve of `values` [E] after `rounds` [E]; the largest client of round r of R had `batches[r]` [R]."""
        values_E = as_array(values).astype(np.float64)
        rounds_E = as_ints("rounds", rounds, as_array(rounds).size)
        batches_R = as_ints("batches", batches, as_array(batches).size)
        if values_E.shape != rounds_E.shape:
            raise ValueError(f"values has shape {values_E.shape} but rounds {rounds_E.shape}: give one for each round")
        if len(rounds_E) and (rounds_E[0] < 0 or np.any(np.diff(rounds_E) <= 0)):
            raise ValueError(f"rounds is {rounds_E.tolist()}: give each evaluation once, in order, counted from 0")
        if len(rounds_E) and rounds_E[-1] > len(batches_R):
            raise ValueError(f"rounds ends at {rounds_E[-1]} but batches has {len(batches_R)} rounds: give all of them")
        if np.any(batches_R < 0):
            raise ValueError(f"batches has {batches_R.min()}: give the local batches of the largest client, 0 or more")
        return Curve(rounds_E, values_E, np.concatenate([[0], np.cumsum(batches_R)]).astype(np.int64), has_batches)

    def value_at_round(self, round: int) -> float | None:
        """Return the latest value up to a round; None if the run is shorter or was not evaluated by then."""
        return self._latest(np.arange(len(self.cumulative_batches_R)), round)

    def value_at_batches(self, batches: int) -> float | None:
        """Return the latest value within a number of batches; None if the run is shorter or was not evaluated by then."""
        return self._latest(self._known_batches(), batches)

    def rounds_to(self, target: float) -> int | None:
        """Return the rounds before the first value at or above the target; None if there is none."""
        reached = np.flatnonzero(self.values_E >= target)
        return int(self.rounds_E[reached[0]]) if len(reached) else None

    def batches_to(self, target: float) -> int | None:
        """Return the batches before the first value at or above the target; None if there is none."""
        cumulative_batches_R, rounds = self._known_batches(), self.rounds_to(target)
        return None if rounds is None else int(cumulative_batches_R[rounds])

    def _known_batches(self) -> Ints:
        if not self.has_batches:
            problem = "The run does not record its local batches, which a private run withholds"
            raise ValueError(f"{problem}: train it with unprotected_statistics=true.")
        return self.cumulative_batches_R

    def _latest(self, cost_R: Ints, limit: int) -> float | None:
        """Return the last of the values whose cost, given for each number of rounds, is within a limit."""
        count = np.searchsorted(cost_R[self.rounds_E], limit, side="right")
        return float(self.values_E[count - 1]) if count and limit <= cost_R[-1] else None
