"""Accuracy and cross-entropy of single-label predictions: overall, per class and per user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints, Scores, as_array, as_ints, as_scores, ratio, refuse_nan
from manyeyes.metrics.users import PerUser


@dataclass(frozen=True, eq=False)
class Accuracy:
    """How many examples there were and how many were right, for each class and for each user seen."""

    correct_C: Ints
    count_C: Ints
    loss_sum: float
    users_U: Ints  # ids, sorted; none when users were not given
    user_correct_U: Ints
    user_count_U: Ints

    @staticmethod
    def empty(classes: int) -> Accuracy:
        none = np.zeros(0, np.int64)
        return Accuracy(np.zeros(classes, np.int64), np.zeros(classes, np.int64), 0.0, none, none, none)

    @staticmethod
    def from_scores(scores: Any, targets: Any, users: Any = None, losses: Any = None) -> Accuracy:
        """From logits [N, C] and class ids [N]; losses [N] are the cross-entropy of the logits unless given."""
        scores_NC = as_scores(scores)
        targets_N = _class_ids("targets", targets, *scores_NC.shape)
        if losses is None:
            losses = _cross_entropy(scores_NC, targets_N)
        return Accuracy.from_predictions(scores_NC.argmax(axis=1), targets_N, scores_NC.shape[1], losses, users)

    @staticmethod
    def from_predictions(predicted: Any, targets: Any, classes: int, losses: Any, users: Any = None) -> Accuracy:
        """From predicted class ids [N], for an engine that keeps its logits on the device."""
        targets_N = _class_ids("targets", targets, as_array(targets).size, classes)
        correct_N = _class_ids("predicted", predicted, len(targets_N), classes) == targets_N
        losses_N = as_array(losses).astype(np.float64)
        if losses_N.shape != targets_N.shape:
            raise ValueError(
                f"losses has shape {losses_N.shape} but there are {len(targets_N)} examples: give one each"
            )
        refuse_nan("losses", losses_N)
        users_N = as_ints("users", users, len(targets_N)) if users is not None else np.zeros(0, np.int64)
        return Accuracy(
            np.bincount(targets_N[correct_N], minlength=classes),
            np.bincount(targets_N, minlength=classes),
            float(losses_N.sum()),
            *_sum_by_user(users_N, correct_N[: len(users_N)], np.ones(len(users_N), np.int64)),
        )

    def __add__(self, other: Accuracy) -> Accuracy:
        if len(self.count_C) != len(other.count_C):
            raise ValueError(f"cannot add accuracies over {len(self.count_C)} and {len(other.count_C)} classes")
        if self.examples and other.examples and bool(len(self.users_U)) != bool(len(other.users_U)):
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
        )

    @property
    def examples(self) -> int:
        return int(self.count_C.sum())

    def per_class(self) -> Floats:
        """The accuracy on (recall of) each class [C]; 0 where `count_C` is 0."""
        return ratio(self.correct_C, self.count_C)

    def per_user(self) -> PerUser:
        return PerUser(self.users_U, ratio(self.user_correct_U, self.user_count_U), self.user_count_U)

    def results(self) -> dict[str, float]:
        """All in one table; `macro_accuracy` is the mean over the classes that occur. Without examples all is 0."""
        overall = {
            "examples": float(self.examples),
            "accuracy": float(ratio(self.correct_C.sum(), self.examples)),
            "loss": float(ratio(self.loss_sum, self.examples)),
            "macro_accuracy": float(ratio(self.per_class().sum(), np.count_nonzero(self.count_C))),
        }
        if len(self.users_U) == 0:
            return overall
        return overall | {f"user_{name}": value for name, value in self.per_user().summary().items()}


def _class_ids(name: str, values: Any, count: int, classes: int) -> Ints:
    ids_N = as_ints(name, values, count)
    outside = ids_N[(ids_N < 0) | (ids_N >= classes)]
    if len(outside):
        raise ValueError(f"{name} has class {outside[0]} but there are {classes} classes: count them from 0")
    return ids_N


def _cross_entropy(scores_NC: Scores, targets_N: Ints) -> Floats:
    """log(sum(exp(s))) - s[target], in float64; the largest score is taken out so that nothing overflows."""
    with np.errstate(invalid="ignore"):  # infinite logits: the NaN is refused by name
        shifted_NC = scores_NC.astype(np.float64) - scores_NC.max(axis=1, keepdims=True)
    target_N = shifted_NC[np.arange(len(targets_N)), targets_N]
    return np.asarray(np.log(np.exp(shifted_NC).sum(axis=1)) - target_N)


def _sum_by_user(users: Ints, correct: Any, counts: Ints) -> tuple[Ints, Ints, Ints]:
    users_U, place = np.unique(users, return_inverse=True)
    sums = [np.bincount(place, weights=part, minlength=len(users_U)).astype(np.int64) for part in (correct, counts)]
    return users_U, sums[0], sums[1]
