"""One score for each user, and its summary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints
from manyeyes.metrics.base import ResultInfo

PERCENTILES = (5, 25, 50, 75, 95)

USER_RESULTS = {
    "num_users_scored": ResultInfo("users scored", higher_is_better=None),
    "num_users_unscorable": ResultInfo("users whose images allow no score", higher_is_better=None),
    "num_users_without_test": ResultInfo("users without test images", higher_is_better=None),
    "user_mean": ResultInfo("score per user, mean", is_fraction=True),
    "user_weighted_mean": ResultInfo("score per user, mean weighted by images", is_fraction=True),
    **{
        f"user_q{percent:02d}": ResultInfo(f"score per user, {percent}th percentile", is_fraction=True)
        for percent in PERCENTILES
    },
    "user_worst_decile": ResultInfo("score per user, mean of the worst 10 %", is_fraction=True),
}


@dataclass(frozen=True, eq=False)
class PerUser:
    """A score for each scored user, in the order of their ids."""

    users_U: Ints
    values_U: Floats
    counts_U: Ints  # examples of each user
    num_unscorable: int = 0  # users whose examples allow no score

    def summary(self) -> dict[str, float]:
        """Return means, percentiles and the mean of the worst tenth of the users (at least one); 0 without users."""
        values = np.sort(self.values_U)
        has_users = len(values) > 0
        percentiles = np.percentile(values, PERCENTILES) if has_users else np.zeros(len(PERCENTILES))
        return {
            "mean": float(values.mean()) if has_users else 0.0,
            "weighted_mean": float(np.average(self.values_U, weights=self.counts_U)) if has_users else 0.0,
            **{f"q{percent:02d}": float(value) for percent, value in zip(PERCENTILES, percentiles, strict=True)},
            "worst_decile": float(values[: -(-len(values) // 10)].mean()) if has_users else 0.0,
        }

    def compute(self) -> dict[str, float]:
        """Return the summary and the number of users, by the names of the results of an evaluation."""
        counts = {"num_users_scored": len(self.values_U), "num_users_unscorable": self.num_unscorable}
        return {
            **{name: float(count) for name, count in counts.items()},
            **{f"user_{name}": value for name, value in self.summary().items()},
        }
