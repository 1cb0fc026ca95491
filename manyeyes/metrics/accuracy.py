"""Accuracy and cross-entropy of single-label predictions, overall and per class; and one score for each user.

The reported loss is computed in NumPy and float64, independently of the training loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints, Scores, as_array, as_class_ids, as_ints, as_scores, ratio, refuse_nan
from manyeyes.metrics.base import NO_METRICS, MetricSet, ResultInfo

PERCENTILES = (5, 25, 50, 75, 95)
USER_RESULTS = {
    "num_users_scored": ResultInfo("users scored", higher_is_better=None),
    "num_users_unscorable": ResultInfo("users whose images allow no score", higher_is_better=None),
    "num_users_without_test": ResultInfo("users without test images", higher_is_better=None),
    "user_mean": ResultInfo("score per user, mean", is_fraction=True),
    "user_weighted_mean": ResultInfo("score per user, mean weighted by images", is_fraction=True),
    **{f"user_q{p:02d}": ResultInfo(f"score per user, {p}th percentile", is_fraction=True) for p in PERCENTILES},
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
        values = np.sort(self.values_U) if len(self.values_U) else np.zeros(1)
        percentiles = np.percentile(values, PERCENTILES)
        return {
            "mean": float(values.mean()),
            "weighted_mean": float(ratio((self.values_U * self.counts_U).sum(), self.counts_U.sum())),
            **{f"q{percent:02d}": float(value) for percent, value in zip(PERCENTILES, percentiles, strict=True)},
            "worst_decile": float(values[: -(-len(values) // 10)].mean()),
        }

    def compute(self) -> dict[str, float]:
        """Return the summary and the number of users, by the names of the results of an evaluation."""
        return {
            "num_users_scored": float(len(self.values_U)),
            "num_users_unscorable": float(self.num_unscorable),
            **{f"user_{name}": value for name, value in self.summary().items()},
        }


@dataclass(frozen=True, eq=False)
class Accuracy:
    """The number of examples and of correct predictions, for each class and for each user seen."""

    results: ClassVar[Mapping[str, ResultInfo]] = {
        "examples": ResultInfo("evaluated images", higher_is_better=None),
        "accuracy": ResultInfo("accuracy", is_fraction=True),
        "loss": ResultInfo("loss on the evaluated split", higher_is_better=False),
        "macro_accuracy": ResultInfo("accuracy, mean over classes", is_fraction=True),
        **USER_RESULTS,
    }

    correct_C: Ints
    count_C: Ints
    loss_sum: float
    users_U: Ints  # ids, sorted; empty when users were not given
    user_correct_U: Ints
    user_count_U: Ints
    extra: MetricSet = NO_METRICS  # further metrics of the same examples

    @staticmethod
    def empty(num_classes: int, extra: MetricSet = NO_METRICS) -> "Accuracy":
        zeros_C, none = np.zeros(num_classes, np.int64), np.zeros(0, np.int64)
        return Accuracy(zeros_C, zeros_C, 0.0, none, none, none, extra)

    @staticmethod
    def from_scores(scores: Any, targets: Any, users: Any = None) -> "Accuracy":
        """Count logits [N, C], class ids [N] and, for results per user, the user id of each example [N]."""
        scores_NC = as_scores(scores)
        targets_N = as_class_ids("targets", targets, *scores_NC.shape)
        losses_N = cross_entropy(scores_NC, targets_N)
        return Accuracy.from_predictions(scores_NC.argmax(axis=1), targets_N, scores_NC.shape[1], losses_N, users)

    @staticmethod
    def from_predictions(predicted: Any, targets: Any, num_classes: int, losses: Any, users: Any = None) -> "Accuracy":
        """Count predicted class ids [N], for an engine that leaves its logits on the device."""
        targets_N = as_class_ids("targets", targets, as_array(targets).size, num_classes)
        is_correct_N = as_class_ids("predicted", predicted, len(targets_N), num_classes) == targets_N
        losses_N = refuse_nan("losses", as_array(losses).astype(np.float64))
        if losses_N.shape != targets_N.shape:
            raise ValueError(
                f"losses has shape {losses_N.shape} but there are {len(targets_N)} examples: give one each"
            )
        users_N = as_ints("users", users, len(targets_N)) if users is not None else np.zeros(0, np.int64)
        return Accuracy(
            np.bincount(targets_N[is_correct_N], minlength=num_classes),
            np.bincount(targets_N, minlength=num_classes),
            float(losses_N.sum()),
            *_sum_by_user(users_N, is_correct_N[: len(users_N)], np.ones(len(users_N), np.int64)),
        )

    def update(self, outputs_NC: Any, targets: Any, users: Any = None) -> "Accuracy":
        return self.merge(Accuracy.from_scores(outputs_NC, targets, users))

    def merge(self, other: "Accuracy") -> "Accuracy":
        if len(self.count_C) != len(other.count_C):
            raise ValueError(f"cannot add accuracies over {len(self.count_C)} and {len(other.count_C)} classes")
        if self.num_examples and other.num_examples and bool(len(self.users_U)) != bool(len(other.users_U)):
            raise ValueError("cannot add an accuracy with users and one without: give users to both or to neither")
        return Accuracy(
            self.correct_C + other.correct_C,
            self.count_C + other.count_C,
            self.loss_sum + other.loss_sum,
            *_sum_by_user(
                np.concatenate([self.users_U, other.users_U]),
                np.concatenate([self.user_correct_U, other.user_correct_U]),
                np.concatenate([self.user_count_U, other.user_count_U]),
            ),
            extra=self.extra.merge(other.extra),
        )

    __add__ = merge

    @property
    def num_examples(self) -> int:
        return int(self.count_C.sum())

    @property
    def mean_loss(self) -> float:
        return float(ratio(self.loss_sum, self.num_examples))

    def per_class(self) -> Floats:
        """Return the accuracy on (recall of) each class [C]; 0 where `count_C` is 0."""
        return ratio(self.correct_C, self.count_C)

    def per_user(self) -> PerUser:
        return PerUser(self.users_U, ratio(self.user_correct_U, self.user_count_U), self.user_count_U)

    def compute(self) -> dict[str, float]:
        """Return all results; `macro_accuracy` is the mean over the classes that occur. Without examples all are 0."""
        overall = {
            "examples": float(self.num_examples),
            "accuracy": float(ratio(self.correct_C.sum(), self.num_examples)),
            "loss": self.mean_loss,
            "macro_accuracy": float(ratio(self.per_class().sum(), np.count_nonzero(self.count_C))),
        }
        extra = self.extra.compute() if self.extra.metrics else {}
        return overall | (self.per_user().compute() if len(self.users_U) else {}) | extra


def _sum_by_user(users: Ints, correct: Any, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the users, sorted, and the sums of `correct` and `counts` of each."""
    users_U, index_N = np.unique(users, return_inverse=True)
    correct_U, counts_U = (np.bincount(index_N, values, len(users_U)) for values in (correct, counts))
    return users_U, correct_U.astype(np.int64), counts_U.astype(np.int64)


def cross_entropy(scores_NC: Scores, targets_N: Ints) -> Floats:
    """Return log(sum(exp(s))) - s[target] of each example; the largest score is subtracted to avoid overflow."""
    with np.errstate(invalid="ignore"):  # infinite logits: the NaN is refused by name
        shifted_NC = scores_NC.astype(np.float64) - scores_NC.max(axis=1, keepdims=True)
    target_N = shifted_NC[np.arange(len(targets_N)), targets_N]
    return np.asarray(np.log(np.exp(shifted_NC).sum(axis=1)) - target_N)
