"""Losses as they are reported: float64 in NumPy, independent of the training loss."""

from __future__ import annotations

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints, Scores

BLOCK_EXAMPLES = 4096  # examples whose binary losses are computed at a time


def cross_entropy(scores_NC: Scores, targets_N: Ints) -> Floats:
    """Return log(sum(exp(s))) - s[target] of each example; the largest score is subtracted to avoid overflow."""
    with np.errstate(invalid="ignore"):  # infinite logits: the NaN is refused by name
        shifted_NC = scores_NC.astype(np.float64) - scores_NC.max(axis=1, keepdims=True)
    target_N = shifted_NC[np.arange(len(targets_N)), targets_N]
    return np.asarray(np.log(np.exp(shifted_NC).sum(axis=1)) - target_N)


def mean_binary_cross_entropy(scores_NC: Scores, score_P: Scores) -> float:
    """Return the mean of softplus(s) - s y over examples and classes; `score_P` are the scores where y is 1."""
    blocks = (scores_NC[start : start + BLOCK_EXAMPLES] for start in range(0, len(scores_NC), BLOCK_EXAMPLES))
    softplus_sum = sum(float(np.logaddexp(0, block, dtype=np.float64).sum()) for block in blocks)
    return (softplus_sum - float(score_P.sum(dtype=np.float64))) / max(1, scores_NC.size)
