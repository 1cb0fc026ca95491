"""Further metrics of single-label predictions: top-k accuracy, and the calibration of confidences."""

from dataclasses import field
from typing import Any

import numpy as np

from manyeyes.core.population import Population
from manyeyes.core.registry import component, option
from manyeyes.metrics.arrays import as_class_ids, as_scores, ratio
from manyeyes.metrics.base import ResultInfo


@component("metric", "top_k")
class TopK:
    """The fraction of examples whose label is among the k highest outputs; of equal outputs the first class is higher."""

    k: int = option(5, "number of highest outputs that may include the label", minimum=1)
    num_correct: int = field(default=0, repr=False)
    num_examples: int = field(default=0, repr=False)

    @property
    def results(self) -> dict[str, ResultInfo]:
        return {f"top_{self.k}_accuracy": ResultInfo(f"top-{self.k} accuracy", is_fraction=True)}

    def incompatibility(self, population: Population) -> str | None:
        num_classes = len(population.classes)
        if self.k > num_classes:
            return f"metrics.top_k.k is {self.k} and the data has {num_classes} classes: set it to {num_classes}"
        return _incompatibility_with_several_labels("top_k", population)

    def update(self, outputs_NC: Any, targets: Any) -> "TopK":
        scores_NC = as_scores(outputs_NC)
        num_examples, num_classes = scores_NC.shape
        targets_N1 = as_class_ids("targets", targets, num_examples, num_classes)[:, None]
        target_score_N1 = np.take_along_axis(scores_NC, targets_N1, axis=1)
        is_tied_before = (scores_NC == target_score_N1) & (np.arange(num_classes) < targets_N1)
        rank_N = np.count_nonzero((scores_NC > target_score_N1) | is_tied_before, axis=1)
        return self.merge(TopK(self.k, int(np.count_nonzero(rank_N < self.k)), num_examples))

    def merge(self, other: "TopK") -> "TopK":
        return TopK(self.k, self.num_correct + other.num_correct, self.num_examples + other.num_examples)

    def compute(self) -> dict[str, float]:
        return {f"top_{self.k}_accuracy": float(ratio(self.num_correct, self.num_examples))}


@component("metric", "ece")
class CalibrationError:
    """Expected calibration error (Guo et al. 2017, arXiv:1706.04599): the mean gap between confidence and accuracy.

    Bin m of M has the largest softmax probabilities in ((m - 1) / M, m / M]; bins are weighted by their examples.
    """

    bins: int = option(15, "bins of equal width between 0 and 1", minimum=1)
    sums_3M: Any = field(default=0.0, repr=False, compare=False)  # [3, M]: of examples, correct ones, confidences

    @property
    def results(self) -> dict[str, ResultInfo]:
        return {"ece": ResultInfo("expected calibration error", is_fraction=True, higher_is_better=False)}

    def incompatibility(self, population: Population) -> str | None:
        return _incompatibility_with_several_labels("ece", population)

    def update(self, outputs_NC: Any, targets: Any) -> "CalibrationError":
        scores_NC = as_scores(outputs_NC).astype(np.float64)
        targets_N = as_class_ids("targets", targets, *scores_NC.shape)
        confidence_N = 1 / np.exp(scores_NC - scores_NC.max(axis=1, keepdims=True)).sum(axis=1)
        is_correct_N = scores_NC.argmax(axis=1) == targets_N
        bin_N = np.clip(np.ceil(confidence_N * self.bins).astype(np.int64) - 1, 0, self.bins - 1)
        values_3N = (np.ones(len(targets_N)), is_correct_N, confidence_N)
        sums_3M = np.stack([np.bincount(bin_N, values_N, self.bins) for values_N in values_3N])
        return CalibrationError(self.bins, self.sums_3M + sums_3M)

    def merge(self, other: "CalibrationError") -> "CalibrationError":
        return CalibrationError(self.bins, self.sums_3M + other.sums_3M)

    def compute(self) -> dict[str, float]:
        count_M, correct_M, confidence_M = np.broadcast_to(self.sums_3M, (3, self.bins))
        return {"ece": float(np.abs(correct_M - confidence_M).sum() / max(1.0, count_M.sum()))}


def _incompatibility_with_several_labels(metric: str, population: Population) -> str | None:
    message = f"metrics has {metric}, which needs one label per image, and the data has several: leave it out"
    return message if population.labels.multi else None
