"""Average precision as FLAIR's released benchmark computes it: from counts at 200 thresholds of the sigmoid.

The benchmark (apple/ml-flair, `flair_metrics.py`) counts with Keras's `AUC`: threshold i is i / 199, the first is below
and the last above every sigmoid, and an example is predicted above the threshold. Its AP is the sum over the thresholds
of (R_i - R_{i+1}) P_i, without the interpolation of Keras's own `curve="PR"`. That is the exact AP of scores that are
rounded to 200 levels: classes whose examples all have low sigmoids, as rare ones do, lose most by it.
"""

from dataclasses import dataclass

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints, Scores, ratio

NUM_THRESHOLDS = 200
SIGMOIDS = np.arange(1, NUM_THRESHOLDS - 1) / (NUM_THRESHOLDS - 1)  # of the thresholds between the first and the last
LOGITS = np.log(SIGMOIDS / (1 - SIGMOIDS))


@dataclass(frozen=True, eq=False)
class ThresholdCounts:
    """How many examples, and how many positives among them, are above each of the T thresholds, for G groups."""

    examples_GT: Ints
    positives_GT: Ints

    def sum(self) -> "ThresholdCounts":
        """Return the counts of all groups as one."""
        return ThresholdCounts(self.examples_GT.sum(0, keepdims=True), self.positives_GT.sum(0, keepdims=True))

    def average_precision(self) -> Floats:
        """Return the average precision of each group [G]; 0 without positives."""
        precision_GT = ratio(self.positives_GT, self.examples_GT)
        at_threshold_GT = self.positives_GT[:, :-1] - self.positives_GT[:, 1:]  # above it and not above the next one
        return ratio((at_threshold_GT * precision_GT[:, :-1]).sum(1), self.positives_GT[:, 0])


def num_above_thresholds(ascending: Scores) -> Ints:
    """Return the number of the sorted logits above each threshold [T]."""
    above = len(ascending) - np.searchsorted(ascending, LOGITS.astype(ascending.dtype), side="right")
    return np.concatenate([[len(ascending)], above, [0]])
