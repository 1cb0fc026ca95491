"""Expected calibration error (Guo et al. 2017, arXiv:1706.04599)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from manyeyes.core.registry import option, register
from manyeyes.metrics.arrays import Floats, as_class_ids, as_scores
from manyeyes.metrics.base import ResultInfo

if TYPE_CHECKING:
    from manyeyes.core.population import Population


@register("metric", "ece")
@dataclass(frozen=True)
class CalibrationError:
    """The mean distance between confidence and accuracy over bins of equal width, weighted by their examples.

    The confidence is the largest softmax probability; bin m of M has those in ((m - 1) / M, m / M].
    """

    bins: int = option(15, "bins of equal width between 0 and 1")
    sums_3M: Floats | None = field(default=None, repr=False, compare=False)  # of examples, correct ones, confidences

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise ValueError(f"metric ece has bins={self.bins}: give at least 1")

    @property
    def results(self) -> dict[str, ResultInfo]:
        return {"ece": ResultInfo("expected calibration error", is_fraction=True, higher_is_better=False)}

    def incompatibility(self, population: Population) -> str | None:
        if population.labels.multi:
            return "metric ece needs one label per image and the data has several: leave it out"
        return None

    def update(self, outputs_NC: Any, targets: Any) -> CalibrationError:
        scores_NC = as_scores(outputs_NC).astype(np.float64)
        targets_N = as_class_ids("targets", targets, *scores_NC.shape)
        confidence_N = 1 / np.exp(scores_NC - scores_NC.max(axis=1, keepdims=True)).sum(axis=1)
        is_correct_N = scores_NC.argmax(axis=1) == targets_N
        bin_N = np.clip(np.ceil(confidence_N * self.bins).astype(np.int64) - 1, 0, self.bins - 1)
        values_3N = (np.ones(len(targets_N)), is_correct_N, confidence_N)
        return self._add(np.stack([np.bincount(bin_N, values_N, self.bins) for values_N in values_3N]))

    def merge(self, other: CalibrationError) -> CalibrationError:
        return self if other.sums_3M is None else self._add(other.sums_3M)

    def compute(self) -> dict[str, float]:
        if self.sums_3M is None:
            return {"ece": 0.0}
        count_M, correct_M, confidence_M = self.sums_3M
        return {"ece": float(np.abs(correct_M - confidence_M).sum() / max(1.0, count_M.sum()))}

    def _add(self, sums_3M: Floats) -> CalibrationError:
        return replace(self, sums_3M=sums_3M if self.sums_3M is None else self.sums_3M + sums_3M)
