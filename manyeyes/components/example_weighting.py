"""How much an example counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Floats, Ints, Population
from manyeyes.core.registry import register


@register("example_weighting", "importance")
@dataclass(frozen=True)
class ImportanceReweighting:
    """FedIR: p(y) / q_k(y), normalised over the batch by the loss (Hsu et al. 2020, Eq. 3 and 4)."""

    target_distribution: tuple[float, ...] | None = None  # p(y); None: the population's own

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if population.labels.multi:
            return (
                "importance ratios p(y)/q(y) need one class an example, and this population has several: turn FedIR off"
            )
        if self.target_distribution is None:
            return None
        if len(self.target_distribution) != len(population.classes):
            return f"the target distribution has {len(self.target_distribution)} numbers for {len(population.classes)} classes"
        if not (min(self.target_distribution) >= 0 and abs(sum(self.target_distribution) - 1) <= 1e-6):
            return f"the target distribution must be at least 0 everywhere and sum to 1; it sums to {sum(self.target_distribution):.6g}"
        return None

    def class_weights(self, client_counts: Ints, population_counts: Ints) -> Floats:
        """p(y) / q_k(y) for the classes that the client has; no example asks for the others, which get 0."""
        target = (
            population_counts / population_counts.sum()
            if self.target_distribution is None
            else np.asarray(self.target_distribution)
        )
        share = client_counts / client_counts.sum()
        return np.divide(target, share, out=np.zeros(len(share)), where=share > 0).astype(np.float32)
