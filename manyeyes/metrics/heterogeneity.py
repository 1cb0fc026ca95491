"""Heterogeneity: how far the users' class distributions are from the population's (Hsu et al. 2020, section 6.1)."""

from typing import Any

import numpy as np

from manyeyes.metrics.arrays import Floats, Ints, as_array


def emd_of_counts(
    user_N: Ints, class_N: Ints, count_N: Ints | Floats, num_users: int, class_counts_C: Ints | Floats
) -> Floats:
    """Return ||q_i - p||_1 of each user i [U], in [0, 2], from how often each user has each of its classes.

    q_i is the user's class distribution and p the population's. Only the classes that a user has are given, so that
    memory does not grow with users times classes; a user without any gets 1, the sum of p.
    """
    total_U = np.bincount(user_N, count_N, num_users)
    p_C = class_counts_C / max(1, class_counts_C.sum())
    distance_N = np.abs(count_N / total_U[user_N] - p_C[class_N])
    return np.asarray(1 + np.bincount(user_N, distance_N - p_C[class_N], num_users), np.float64)


def emd(histograms_UC: Any) -> Floats:
    """Return ||q_i - p||_1 of each user i [U] from how many examples of each class each user has."""
    counts_UC = as_array(histograms_UC).astype(np.float64)
    if counts_UC.ndim != 2 or counts_UC.size == 0:
        raise ValueError(f"histograms has shape {counts_UC.shape}: give a row for each user, a column for each class")
    if not np.all(np.isfinite(counts_UC) & (counts_UC >= 0)):
        raise ValueError("histograms has a negative or infinite count: give how many examples of each class a user has")
    if len(empty_users := np.flatnonzero(counts_UC.sum(axis=1) == 0)):
        raise ValueError(f"the user in row {empty_users[0]} has no examples, so no distribution: leave such users out")
    user_N, class_N = np.nonzero(counts_UC)
    return emd_of_counts(user_N, class_N, counts_UC[user_N, class_N], len(counts_UC), counts_UC.sum(axis=0))


def mean_emd(histograms_UC: Any) -> float:
    """Return the non-identicalness sum_i (n_i / n) ||q_i - p||_1."""
    return float(np.average(emd(histograms_UC), weights=as_array(histograms_UC).sum(axis=1)))
