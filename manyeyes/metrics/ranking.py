"""Average precision, exactly, from sorted scores.

AP = sum over thresholds of (R_n - R_{n-1}) P_n. Recall only rises at positives, so AP is the mean over the positives of
the precision at their own score: (positives at or above it) / (examples at or above it). Equal scores share one
threshold. So a sort of the scores (no argsort) and a search for each positive are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints, Scores, ratio


@dataclass(frozen=True, eq=False)
class Positives:
    """The scores of the positives, ascending within each of G groups; group g is `bounds_G[g]` to `bounds_G[g + 1]`."""

    scores_P: Scores
    group_P: Ints
    bounds_G: Ints

    @staticmethod
    def from_scores(scores_P: Scores, group_P: Ints, num_groups: int) -> Positives:
        order = np.lexsort((scores_P, group_P))
        bounds = np.searchsorted(group_P[order], np.arange(num_groups + 1))
        return Positives(scores_P[order], group_P[order], bounds)

    def average_precision(self, num_above_P: Ints) -> Floats:
        """Return the average precision of each group [G], given the number of its examples at or above each positive.

        It is 0 for a group without positives, as scikit-learn's.
        """
        is_first_P = np.ones(len(self.scores_P), bool)  # of the positives with the same score
        is_first_P[1:] = (self.scores_P[1:] != self.scores_P[:-1]) | (self.group_P[1:] != self.group_P[:-1])
        below_P = np.maximum.accumulate(np.where(is_first_P, np.arange(len(is_first_P)), 0))
        precision_P = ratio(self.bounds_G[self.group_P + 1] - below_P, num_above_P)
        sums = np.bincount(self.group_P, weights=precision_P, minlength=len(self.bounds_G) - 1)
        return ratio(sums, np.diff(self.bounds_G))

    def count_examples(self, scores_GN: Scores, first_group: int, out_P: Ints) -> None:
        """Sort the scores of some groups in place and write the number at or above each of their positives."""
        scores_GN.sort(axis=1)
        for group, ascending in enumerate(scores_GN, first_group):
            positives = slice(self.bounds_G[group], self.bounds_G[group + 1])
            out_P[positives] = num_at_or_above(ascending, self.scores_P[positives])


def num_at_or_above(ascending: Scores, thresholds: Scores) -> Ints:
    """Return the number of the sorted scores at or above each threshold."""
    return np.asarray(len(ascending) - np.searchsorted(ascending, thresholds, side="left"))
