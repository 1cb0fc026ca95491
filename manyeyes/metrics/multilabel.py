"""Precision, recall, F1 and average precision of multi-label predictions: per class, overall and per user.

Average precision is exact: AP = sum over thresholds of (R_n - R_{n-1}) P_n. Recall only rises at positives, so AP is the
mean over the positives of the precision at their own score: (positives at or above it) / (examples at or above it).
Equal scores share one threshold. So a sort of the scores (no argsort) and a search for each positive are enough. The AP of
FLAIR's released benchmark, at 200 thresholds, is counted in the same sorted scores.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from manyeyes.metrics.accuracy import USER_RESULTS, PerUser
from manyeyes.metrics.arrays import Floats, Ints, Scores, as_array, as_ints, as_scores, ratio
from manyeyes.metrics.base import NO_METRICS, MetricSet, ResultInfo
from manyeyes.metrics.threshold_ap import NUM_THRESHOLDS, ThresholdCounts, num_above_thresholds

SCORE_LABELS = {"ap": "average precision", "precision": "precision", "recall": "recall", "f1": "F1"}
BLOCK_EXAMPLES = 4096  # examples whose binary losses are computed at a time
BLOCK_SCORES = 1 << 22  # scores sorted at a time by one thread: large enough for few searches, small enough for memory


@dataclass(frozen=True, eq=False)
class PerClass:
    """One value for each class; 0 where it is undefined."""

    ap_C: Floats
    precision_C: Floats
    recall_C: Floats
    f1_C: Floats
    support_C: Ints  # examples that have the class
    ap_200_C: Floats  # at the 200 thresholds of FLAIR's released benchmark


@dataclass(frozen=True, eq=False)
class AveragePrecision:
    """The average precision of each class, and of all scores as one ranking: exact, and at 200 thresholds."""

    ap_C: Floats
    ap: float
    ap_200_C: Floats
    ap_200: float


@dataclass(frozen=True, eq=False)
class Batch:
    """The scores of some examples, and the (row, class) of each positive."""

    scores_NC: Scores
    row_P: Ints
    class_P: Ints
    users_N: Ints | None

    @property
    def score_P(self) -> Scores:
        return np.asarray(self.scores_NC[self.row_P, self.class_P])


@dataclass(frozen=True, eq=False)
class MultiLabelScores:
    """All scores seen: an exact average precision needs every one of them."""

    results: ClassVar[Mapping[str, ResultInfo]] = {
        **{f"macro_{name}": ResultInfo(f"macro {label}", is_fraction=True) for name, label in SCORE_LABELS.items()},
        "c_f1": ResultInfo("C-F1", is_fraction=True),
        **{f"micro_{name}": ResultInfo(f"micro {label}", is_fraction=True) for name, label in SCORE_LABELS.items()},
        "macro_ap_200": ResultInfo("macro average precision at 200 thresholds", is_fraction=True),
        "micro_ap_200": ResultInfo("micro average precision at 200 thresholds", is_fraction=True),
        "examples": ResultInfo("evaluated images", higher_is_better=None),
        "classes_without_positives": ResultInfo("classes without positives", higher_is_better=None),
        **USER_RESULTS,
    }

    num_classes: int
    batches: tuple[Batch, ...] = ()
    extra: MetricSet = NO_METRICS  # further metrics of the same examples

    @staticmethod
    def empty(num_classes: int, extra: MetricSet = NO_METRICS) -> "MultiLabelScores":
        return MultiLabelScores(num_classes, extra=extra)

    @staticmethod
    def from_scores(scores: Any, targets: Any, users: Any = None) -> "MultiLabelScores":
        """Take scores [N, C], multi-hot targets [N, C] and a user id per example [N].

        Scores are logits; of probabilities, the exact average precision and what is given a threshold are right too.
        """
        scores_NC = as_scores(scores)
        hot_NC = as_array(targets)
        if hot_NC.shape != scores_NC.shape:
            raise ValueError(f"targets has shape {hot_NC.shape} but scores {scores_NC.shape}: give one for each score")
        if len(invalid := hot_NC[(hot_NC != 0) & (hot_NC != 1)]):
            raise ValueError(f"targets has the value {invalid[0]}: give 1 for a class that the example has, else 0")
        users_N = None if users is None else as_ints("users", users, len(scores_NC))
        row_P, class_P = np.nonzero(hot_NC)
        # a copy, since the caller may write its next batch into the same memory
        return MultiLabelScores(scores_NC.shape[1], (Batch(scores_NC.copy(), row_P, class_P, users_N),))

    def update(self, outputs_NC: Any, targets: Any, users: Any = None) -> "MultiLabelScores":
        return self.merge(MultiLabelScores.from_scores(outputs_NC, targets, users))

    def merge(self, other: "MultiLabelScores") -> "MultiLabelScores":
        if self.num_classes != other.num_classes:
            raise ValueError(f"cannot add scores over {self.num_classes} and {other.num_classes} classes")
        batches = self.batches + other.batches
        if len({batch.users_N is None for batch in batches if len(batch.scores_NC)}) > 1:
            raise ValueError("cannot add scores with users and scores without: give users to both or to neither")
        return MultiLabelScores(self.num_classes, batches, self.extra.merge(other.extra))

    __add__ = merge

    @cached_property
    def merged(self) -> Batch:
        none = np.zeros(0, np.int64)
        no_examples = Batch(np.zeros((0, self.num_classes), np.float32), none, none, None)
        batches = [no_examples, *(batch for batch in self.batches if len(batch.scores_NC))]
        starts = np.cumsum([0, *(len(batch.scores_NC) for batch in batches[:-1])])
        users = [batch.users_N for batch in batches if batch.users_N is not None]
        return Batch(
            np.concatenate([batch.scores_NC for batch in batches]),
            np.concatenate([batch.row_P + start for batch, start in zip(batches, starts, strict=True)]),
            np.concatenate([batch.class_P for batch in batches]),
            np.concatenate(users) if users else None,
        )

    @cached_property
    def average_precision(self) -> AveragePrecision:
        scores_NC, score_P, class_P = self.merged.scores_NC, self.merged.score_P, self.merged.class_P
        by_class = Positives.from_scores(score_P, class_P, self.num_classes)
        overall = Positives.from_scores(score_P, np.zeros_like(class_P), 1)
        num_above_P = np.zeros_like(class_P)
        examples_CT = np.zeros((self.num_classes, NUM_THRESHOLDS), np.int64)
        block_classes = max(1, BLOCK_SCORES // max(1, len(scores_NC)))

        def count(first_class: int) -> Ints:
            """Count within each of some classes, and return their share of the overall count: such counts add up."""
            scores_CN = scores_NC[:, first_class : first_class + block_classes].T.copy()
            by_class.count_examples(scores_CN, first_class, num_above_P)
            for class_id, ascending in enumerate(scores_CN, first_class):
                examples_CT[class_id] = num_above_thresholds(ascending)
            ascending = scores_CN.reshape(-1)
            ascending.sort()
            return num_at_or_above(ascending, overall.scores_P)

        with ThreadPoolExecutor(os.cpu_count()) as threads:  # np.sort releases the interpreter lock
            first_classes = range(0, self.num_classes, block_classes)
            overall_P = sum(threads.map(count, first_classes), np.zeros_like(class_P))
        thresholds = ThresholdCounts(examples_CT, by_class.above_thresholds())
        return AveragePrecision(
            by_class.average_precision(num_above_P),
            float(overall.average_precision(overall_P)[0]),
            thresholds.average_precision(),
            float(thresholds.sum().average_precision()[0]),
        )

    @property
    def mean_loss(self) -> float:
        """The binary cross-entropy softplus(s) - s y, averaged over examples and classes."""
        scores_NC = self.merged.scores_NC
        blocks = (scores_NC[start : start + BLOCK_EXAMPLES] for start in range(0, len(scores_NC), BLOCK_EXAMPLES))
        softplus_sum = sum(float(np.logaddexp(0, block, dtype=np.float64).sum()) for block in blocks)
        return (softplus_sum - float(self.merged.score_P.sum(dtype=np.float64))) / max(1, scores_NC.size)

    def per_class(self, threshold: float = 0.0) -> PerClass:
        """Score each class by itself; a class is predicted where its score is above the threshold (0 for logits)."""
        correct_C, predicted_C, support_C = self._counts_C(threshold)
        scores = _precision_recall_f1(correct_C, predicted_C, support_C)
        return PerClass(self.average_precision.ap_C, *scores, support_C, self.average_precision.ap_200_C)

    def per_user(self) -> PerUser:
        """Return each user's macro AP over the classes that only some of its examples have (FLAIR, figure 5).

        The AP of a class that all examples have is 1 whatever the scores are. A user without others is unscorable.
        """
        if self.merged.users_N is None:
            raise ValueError("the scores have no users: give users with every batch for per-user results")
        users_U, user_N, counts_U = np.unique(self.merged.users_N, return_inverse=True, return_counts=True)
        # a group is one class of one user that has it
        key_P = user_N[self.merged.row_P] * self.num_classes + self.merged.class_P
        key_G, group_P = np.unique(key_P, return_inverse=True)
        user_G, class_G = np.divmod(key_G, self.num_classes)
        positives = Positives.from_scores(self.merged.score_P, group_P, len(key_G))
        num_above_P = np.zeros_like(group_P)
        rows = np.split(np.argsort(user_N, kind="stable"), np.cumsum(counts_U)[:-1])
        bounds_U = np.searchsorted(user_G, np.arange(len(users_U) + 1))
        for rows_N, first, last in zip(rows, bounds_U[:-1], bounds_U[1:], strict=True):
            scores_GN = self.merged.scores_NC[rows_N, class_G[first:last, None]]
            positives.count_examples(scores_GN, first, num_above_P)
        ap_G = positives.average_precision(num_above_P)
        is_scored_G = np.bincount(group_P) < counts_U[user_G]
        num_classes_U = np.bincount(user_G, weights=is_scored_G, minlength=len(users_U))
        ap_U = ratio(np.bincount(user_G, weights=ap_G * is_scored_G, minlength=len(users_U)), num_classes_U)
        is_scored_U = num_classes_U > 0
        return PerUser(users_U[is_scored_U], ap_U[is_scored_U], counts_U[is_scored_U], int(np.sum(~is_scored_U)))

    def compute(self, threshold: float = 0.0) -> dict[str, float]:
        """Return all results, FLAIR's table 1 first; a class is predicted where its score is above the threshold.

        `macro_f1` is scikit-learn's, the mean of the classes' F1. `c_f1` is the harmonic mean of macro precision and
        macro recall: it is what FLAIR prints as C-F1 (table 1, C-R-17: 2 * 71.7 * 49.3 / (71.7 + 49.3) = 58.4).
        """
        counts_C = self._counts_C(threshold)
        ap = self.average_precision
        macro = [float(score_C.mean()) for score_C in (ap.ap_C, *_precision_recall_f1(*counts_C))]
        micro = [ap.ap, *map(float, _precision_recall_f1(*(count_C.sum() for count_C in counts_C)))]
        _, precision, recall, _ = macro
        overall = {
            **{f"macro_{name}": score for name, score in zip(SCORE_LABELS, macro, strict=True)},
            "c_f1": float(ratio(2 * precision * recall, precision + recall)),
            **{f"micro_{name}": score for name, score in zip(SCORE_LABELS, micro, strict=True)},
            "macro_ap_200": float(ap.ap_200_C.mean()),
            "micro_ap_200": ap.ap_200,
            "examples": float(len(self.merged.scores_NC)),
            "classes_without_positives": float(np.sum(counts_C[2] == 0)),
        }
        return overall | ({} if self.merged.users_N is None else self.per_user().compute()) | self.extra.compute()

    def _counts_C(self, threshold: float) -> tuple[Ints, Ints, Ints]:
        """Count the true positives, the predictions and the positives of each class."""
        is_found_P = self.merged.score_P > threshold
        correct_C = np.bincount(self.merged.class_P[is_found_P], minlength=self.num_classes)
        predicted_C = np.count_nonzero(self.merged.scores_NC > threshold, axis=0)
        return correct_C, predicted_C, np.bincount(self.merged.class_P, minlength=self.num_classes)


def _precision_recall_f1(correct: Any, predicted: Any, support: Any) -> tuple[Floats, Floats, Floats]:
    return ratio(correct, predicted), ratio(correct, support), ratio(2 * correct, predicted + support)


@dataclass(frozen=True, eq=False)
class Positives:
    """The scores of the positives, ascending within each of G groups; group g is `bounds_G[g]` to `bounds_G[g + 1]`."""

    scores_P: Scores
    group_P: Ints
    bounds_G: Ints

    @staticmethod
    def from_scores(scores_P: Scores, group_P: Ints, num_groups: int) -> "Positives":
        order = np.lexsort((scores_P, group_P))
        return Positives(scores_P[order], group_P[order], np.searchsorted(group_P[order], np.arange(num_groups + 1)))

    def average_precision(self, num_above_P: Ints) -> Floats:
        """Return the average precision of each group [G], from the number of its examples at or above each positive."""
        is_first_P = np.ones(len(self.scores_P), bool)  # of the positives with the same score
        is_first_P[1:] = (self.scores_P[1:] != self.scores_P[:-1]) | (self.group_P[1:] != self.group_P[:-1])
        below_P = np.maximum.accumulate(np.where(is_first_P, np.arange(len(is_first_P)), 0))
        precision_P = ratio(self.bounds_G[self.group_P + 1] - below_P, num_above_P)
        sums = np.bincount(self.group_P, weights=precision_P, minlength=len(self.bounds_G) - 1)
        return ratio(sums, np.diff(self.bounds_G))

    def above_thresholds(self) -> Ints:
        """Return the number of positives of each group above each threshold [G, T]."""
        bounds = zip(self.bounds_G[:-1], self.bounds_G[1:], strict=True)
        counts = [num_above_thresholds(self.scores_P[start:stop]) for start, stop in bounds]
        return np.array(counts, np.int64).reshape(-1, NUM_THRESHOLDS)

    def count_examples(self, scores_GN: Scores, first_group: int, out_P: Ints) -> None:
        """Sort the scores of some groups in place and write the number at or above each of their positives."""
        scores_GN.sort(axis=1)
        for group, ascending in enumerate(scores_GN, first_group):
            positives = slice(self.bounds_G[group], self.bounds_G[group + 1])
            out_P[positives] = num_at_or_above(ascending, self.scores_P[positives])


def num_at_or_above(ascending: Scores, thresholds: Scores) -> Ints:
    """Return the number of the sorted scores at or above each threshold."""
    return np.asarray(len(ascending) - np.searchsorted(ascending, thresholds, side="left"))
