"""Top-k accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from manyeyes.core.registry import option, register
from manyeyes.metrics.arrays import as_class_ids, as_scores, ratio
from manyeyes.metrics.base import ResultInfo

if TYPE_CHECKING:
    from manyeyes.core.population import Population


@register("metric", "top_k")
@dataclass(frozen=True)
class TopK:
    """The fraction of examples whose label is among the k highest outputs; of equal outputs the first class is higher."""

    k: int = option(5, "outputs among which the label counts as found")
    num_correct: int = field(default=0, repr=False)
    num_examples: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"metric top_k has k={self.k}: give at least 1")

    @property
    def results(self) -> dict[str, ResultInfo]:
        return {f"top_{self.k}_accuracy": ResultInfo(f"top-{self.k} accuracy", is_fraction=True)}

    def incompatibility(self, population: Population) -> str | None:
        if population.labels.multi:
            return "metric top_k needs one label per image and the data has several: leave it out"
        if self.k > len(population.classes):
            return f"metric top_k has k={self.k} and the data has {len(population.classes)} classes: set a smaller k"
        return None

    def update(self, outputs_NC: Any, targets: Any) -> TopK:
        scores_NC = as_scores(outputs_NC)
        num_examples, num_classes = scores_NC.shape
        targets_N1 = as_class_ids("targets", targets, num_examples, num_classes)[:, None]
        target_score_N1 = np.take_along_axis(scores_NC, targets_N1, axis=1)
        is_tied_before = (scores_NC == target_score_N1) & (np.arange(num_classes) < targets_N1)
        rank_N = np.count_nonzero((scores_NC > target_score_N1) | is_tied_before, axis=1)
        return self._add(int(np.count_nonzero(rank_N < self.k)), num_examples)

    def merge(self, other: TopK) -> TopK:
        return self._add(other.num_correct, other.num_examples)

    def compute(self) -> dict[str, float]:
        return {f"top_{self.k}_accuracy": float(ratio(self.num_correct, self.num_examples))}

    def _add(self, num_correct: int, num_examples: int) -> TopK:
        return replace(self, num_correct=self.num_correct + num_correct, num_examples=self.num_examples + num_examples)
