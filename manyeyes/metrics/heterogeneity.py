"""Heterogeneity: how many images users and classes have, and how far users' class distributions are from the population's.

The distance is that of Hsu et al. 2020, section 6.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Population
from manyeyes.metrics.arrays import Floats, Ints, as_array

MAX_NAMED_CLASSES = 5  # of a note
NUM_QUANTILES = 100  # that summarize the users, of whom there may be many


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


@dataclass(frozen=True, eq=False)
class SplitStats:
    """The statistics of a population or of one of its splits."""

    name: str
    sizes_U: Ints  # images of each user
    labels_C: Ints  # images with each label
    holders_C: Ints  # users who have each label
    classes_U: Ints  # different labels of each user
    emd_U: Floats  # of the users who have a label
    mean_emd: float  # weighted by their numbers of labels


def split_stats(name: str, population: Population) -> SplitStats:
    """Count users and labels, without a table of users by classes: for FLAIR's fine labels it has 84 million cells."""
    users, classes = len(population.user_ids), len(population.classes)
    example, label = population.labels.nonzero()
    pairs, count = np.unique(population.owners(example) * classes + label, return_counts=True)
    owner, label = np.divmod(pairs, classes)
    labels_C = np.bincount(label, count, classes).astype(np.int64)
    total_U = np.bincount(owner, count, users)
    emd_U = emd_of_counts(owner, label, count, users, labels_C)
    return SplitStats(
        name,
        np.diff(population.offsets),
        labels_C,
        np.bincount(label, minlength=classes),
        np.bincount(owner, minlength=users),
        emd_U[total_U > 0],
        float(emd_U @ total_U / max(1, total_U.sum())),
    )


def dataset_stats(splits: Mapping[str, Population | None]) -> dict[str, Any]:
    """Return the statistics of the splits that a run uses; they identify no user."""
    populations = {name: population for name, population in splits.items() if population is not None}
    first = next(iter(populations.values()))
    return {
        "classes": list(first.classes),
        "labels": "several per image" if first.labels.multi else "one per image",
        "pixels": list(first.image_shape[:2]),
        "splits": {name: _summary(split_stats(name, population)) for name, population in populations.items()},
    }


def rare_classes_note(classes: Sequence[str], counts_C: Ints) -> str:
    """Return which classes have no training image to learn from, or only one; nothing if all have more."""
    rare = np.flatnonzero(counts_C <= 1)
    if not len(rare):
        return ""
    named = ", ".join(f"{classes[c]} ({counts_C[c]})" for c in rare[:MAX_NAMED_CLASSES])
    more = f" and {len(rare) - MAX_NAMED_CLASSES:,} more" if len(rare) > MAX_NAMED_CLASSES else ""
    return f"{len(rare):,} of {len(classes):,} classes have at most one training image: {named}{more}."


def is_valid(stats: dict[str, Any]) -> bool:
    """Return whether a file's content is what `dataset_stats` returns."""
    try:
        height, width = stats["pixels"]
        splits = list(stats["splits"].values())
        per_class = [split[name] for split in splits for name in ("class_images", "class_users")]
        percentiles = [split[f"{name}_percentiles"] for split in splits for name in ("size", "class", "emd")]
        totals = [split[name] for split in splits for name in ("users", "images", "mean_emd")]
        values = [height, width, *totals, *chain(*per_class, *percentiles)]
        texts = [stats["labels"], *stats["classes"]]
        is_complete = bool(splits) and all(len(counts) == len(stats["classes"]) for counts in per_class)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return is_complete and all(isinstance(x, int | float) for x in values) and all(isinstance(x, str) for x in texts)


def _summary(stats: SplitStats) -> dict[str, Any]:
    return {
        "users": len(stats.sizes_U),
        "images": int(stats.sizes_U.sum()),
        "class_images": stats.labels_C.tolist(),
        "class_users": stats.holders_C.tolist(),
        "size_percentiles": _percentiles(stats.sizes_U),
        "class_percentiles": _percentiles(stats.classes_U),
        "emd_percentiles": _percentiles(stats.emd_U),
        "mean_emd": round(stats.mean_emd, 6),
    }


def _percentiles(values: NDArray[Any]) -> list[float]:
    percentiles = np.percentile(values, np.linspace(0, 100, NUM_QUANTILES + 1)) if len(values) else np.zeros(0)
    return [round(float(value), 6) for value in percentiles]
