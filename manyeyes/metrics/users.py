"""Per user: one value for each user, and what a table says of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints

QUANTILES = (5, 25, 50, 75, 95)  # percent


@dataclass(frozen=True, eq=False)
class PerUser:
    """A value for each scored user, in the order of their ids."""

    users_U: Ints
    values_U: Floats
    counts_U: Ints  # examples of each user
    num_unscorable: int = 0  # users seen whose examples allow no score

    def summary(self) -> dict[str, float]:
        """Means, quantiles and the mean of the worst tenth of the users (at least one); 0 when there are none."""
        values = np.sort(self.values_U)
        scored = len(values) > 0
        quantiles = np.percentile(values, QUANTILES) if scored else np.zeros(len(QUANTILES))
        return {
            "scored": float(len(values)),
            "too_small": float(self.num_unscorable),
            "mean": float(values.mean()) if scored else 0.0,
            "weighted_mean": float(np.average(self.values_U, weights=self.counts_U)) if scored else 0.0,
            **{f"q{percent:02d}": float(value) for percent, value in zip(QUANTILES, quantiles, strict=True)},
            "worst_decile": float(values[: -(-len(values) // 10)].mean()) if scored else 0.0,
        }
