"""How much an example counts in the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Floats, Ints, Population
from manyeyes.core.registry import option, register


@register("example_weighting", "importance")
@dataclass(frozen=True)
class ImportanceReweighting:
    """FedIR: p(y) / q_k(y), normalized over the batch by the loss (Hsu et al. 2020, Eq. 3 and 4)."""

    target_distribution: tuple[float, ...] | None = option(None, "p(y), a value per class; none: the population's own")

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if population.labels.multi:
            return (
                "example_weighting=importance needs one class per image, and this data has several labels per image: "
                "set example_weighting=none"
            )
        target, num_classes = self.target_distribution, len(population.classes)
        if target is None:
            return None
        if len(target) != num_classes:
            return f"target_distribution has {len(target)} values for {num_classes} classes: give one value per class"
        if not (min(target) >= 0 and abs(sum(target) - 1) <= 1e-6):
            return f"target_distribution must be at least 0 everywhere and sum to 1; it sums to {sum(target):.6g}"
        return None

    def class_weights(self, client_counts: Ints, population_counts: Ints) -> Floats:
        """Return p(y) / q_k(y) for the classes that the client holds, and 0 for the others."""
        target = self.target_distribution
        target_C = population_counts / population_counts.sum() if target is None else np.asarray(target)
        client_C = client_counts / client_counts.sum()
        return np.divide(target_C, client_C, out=np.zeros(len(client_C)), where=client_C > 0).astype(np.float32)
