"""Accuracy and cross-entropy of single-label predictions: overall, per class and per user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints, as_array, as_class_ids, as_ints, as_scores, ratio, refuse_nan
from manyeyes.metrics.base import NO_METRICS, MetricSet, ResultInfo
from manyeyes.metrics.losses import cross_entropy
from manyeyes.metrics.users import USER_RESULTS, PerUser


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
    def empty(num_classes: int, extra: MetricSet = NO_METRICS) -> Accuracy:
        zeros_C, none = np.zeros(num_classes, np.int64), np.zeros(0, np.int64)
        return Accuracy(zeros_C, zeros_C, 0.0, none, none, none, extra)

    @staticmethod
    def from_scores(scores: Any, targets: Any, users: Any = None, losses: Any = None) -> Accuracy:
        """Count logits [N, C] and class ids [N]; losses [N] are the cross-entropy of the logits unless given."""
        scores_NC = as_scores(scores)
        targets_N = as_class_ids("targets", targets, *scores_NC.shape)
        if losses is None:
            losses = cross_entropy(scores_NC, targets_N)
        return Accuracy.from_predictions(scores_NC.argmax(axis=1), targets_N, scores_NC.shape[1], losses, users)

    @staticmethod
    def from_predictions(predicted: Any, targets: Any, num_classes: int, losses: Any, users: Any = None) -> Accuracy:
        """Count predicted class ids [N], for an engine that leaves its logits on the device."""
        targets_N = as_class_ids("targets", targets, as_array(targets).size, num_classes)
        is_correct_N = as_class_ids("predicted", predicted, len(targets_N), num_classes) == targets_N
        losses_N = as_array(losses).astype(np.float64)
        if losses_N.shape != targets_N.shape:
            raise ValueError(
                f"losses has shape {losses_N.shape} but there are {len(targets_N)} examples: give one for each"
            )
        refuse_nan("losses", losses_N)
        users_N = as_ints("users", users, len(targets_N)) if users is not None else np.zeros(0, np.int64)
        return Accuracy(
            np.bincount(targets_N[is_correct_N], minlength=num_classes),
            np.bincount(targets_N, minlength=num_classes),
            float(losses_N.sum()),
            *_sum_by_user(users_N, is_correct_N[: len(users_N)], np.ones(len(users_N), np.int64)),
        )

    def update(self, outputs_NC: Any, targets: Any, users: Any = None) -> Accuracy:
        return self.merge(Accuracy.from_scores(outputs_NC, targets, users))

    def merge(self, other: Accuracy) -> Accuracy:
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
        return overall | (self.per_user().compute() if len(self.users_U) else {}) | self.extra.compute()


def _sum_by_user(users: Ints, correct: Any, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the users, sorted, and the sums of `correct` and `counts` of each."""
    users_U, user_indices = np.unique(users, return_inverse=True)
    correct_U, counts_U = (
        np.bincount(user_indices, weights=values, minlength=len(users_U)).astype(np.int64)
        for values in (correct, counts)
    )
    return users_U, correct_U, counts_U
