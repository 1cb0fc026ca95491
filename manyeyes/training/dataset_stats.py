"""Dataset statistics of a run: how many images each user and each class has, and how heterogeneous users are."""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints, Population
from manyeyes.metrics import emd_of_counts

Doubles = NDArray[np.float64]
NUM_QUANTILES = 100  # that summarize the users, of whom there may be many


@dataclass(frozen=True, eq=False)
class SplitStats:
    """The statistics of a population or of one of its splits."""

    name: str
    sizes_U: Ints  # images of each user
    labels_C: Ints  # images with each label
    holders_C: Ints  # users who have each label
    classes_U: Ints  # different labels of each user
    emd_U: Doubles  # of the users who have a label
    mean_emd: float  # weighted by their numbers of labels


def split_stats(name: str, population: Population) -> SplitStats:
    """Count users and labels, without a table of users by classes: for FLAIR's fine labels it has 84 million cells."""
    users, classes = len(population.user_ids), len(population.classes)
    example, label = population.labels.nonzero()
    pairs, count = np.unique(population.owners(example) * classes + label, return_counts=True)
    owner, label = np.divmod(pairs, classes)
    labels_C = population.class_counts
    total_U = np.bincount(owner, count, users)
    emd_U = emd_of_counts(owner, label, count, users, labels_C)
    return SplitStats(
        name,
        population.num_examples,
        labels_C,
        np.bincount(label, minlength=classes),
        np.bincount(owner, minlength=users),
        emd_U[total_U > 0],
        float(emd_U @ total_U / max(1, total_U.sum())),
    )


def dataset_stats(splits: dict[str, Population | None]) -> dict[str, Any]:
    """Return the statistics of the splits that a run uses; they identify no user."""
    populations = {name: population for name, population in splits.items() if population is not None}
    first = next(iter(populations.values()))
    return {
        "classes": list(first.classes),
        "labels": "several per image" if first.labels.multi else "one per image",
        "pixels": list(first.image_shape[:2]),
        "splits": {name: _summary(split_stats(name, population)) for name, population in populations.items()},
    }


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
