"""Skew: how far the users' class distributions are from the population's (Hsu et al. 2020, section 6.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from manyeyes.metrics.arrays import Floats, as_array


def emd(histograms_UC: Any) -> Floats:
    """||q_i - p||_1 of each user i [U], in [0, 2]; q_i is its class distribution and p = sum_i (n_i / n) q_i."""
    counts_UC = _histograms(histograms_UC)
    p_C = counts_UC.sum(axis=0) / counts_UC.sum()
    return np.asarray(np.abs(counts_UC / counts_UC.sum(axis=1, keepdims=True) - p_C).sum(axis=1))


def mean_emd(histograms_UC: Any) -> float:
    """Non-identicalness: sum_i (n_i / n) ||q_i - p||_1."""
    return float(np.average(emd(histograms_UC), weights=_histograms(histograms_UC).sum(axis=1)))


def _histograms(histograms_UC: Any) -> Floats:
    counts_UC = as_array(histograms_UC).astype(np.float64)
    if counts_UC.ndim != 2 or counts_UC.size == 0:
        raise ValueError(
            f"histograms has shape {counts_UC.shape}: give a row for each user and a column for each class"
        )
    if not np.all(np.isfinite(counts_UC) & (counts_UC >= 0)):
        raise ValueError("histograms has a negative or infinite count: give how many examples of each class a user has")
    without = np.flatnonzero(counts_UC.sum(axis=1) == 0)
    if len(without):
        raise ValueError(f"the user in row {without[0]} has no examples, so no distribution: leave such users out")
    return counts_UC
