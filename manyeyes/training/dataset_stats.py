"""A census: how many images each user and each class has, and how unlike the users are; kept with a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints, Population
from manyeyes.io.atomic import write_text
from manyeyes.metrics import emd_of_counts

Doubles = NDArray[np.float64]
NAME = "population.json"
STEPS = 100  # quantiles that stand for the users, of whom there may be very many


@dataclass(frozen=True, eq=False)
class SplitStats:
    """The numbers of a population or of one of its splits."""

    name: str
    sizes_U: Ints  # images of each user
    labels_C: Ints  # images with each label
    holders_C: Ints  # users who have each label
    classes_U: Ints  # different labels of each user
    emd_U: Doubles  # of the users who have any label
    mean_emd: float  # weighted by their numbers of labels


def split_stats(name: str, population: Population) -> SplitStats:
    """Counts over users and labels; never a table of users by classes, which for FLAIR's fine labels has 84 million."""
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


def write_dataset_stats(folder: Path, parts: dict[str, Population | None]) -> None:
    """`population.json`: the parts that a run trains on and is evaluated on; no user is told from another in it."""
    there = {name: people for name, people in parts.items() if people is not None}
    first = next(iter(there.values()))
    found = {
        "classes": list(first.classes),
        "labels": "several an image" if first.labels.multi else "one an image",
        "pixels": list(first.image_shape[:2]),
        "parts": {name: _counted(split_stats(name, people)) for name, people in there.items()},
    }
    write_text(folder / NAME, json.dumps(found) + "\n")


def is_valid(found: dict[str, Any]) -> bool:
    """Whether what was read back is what was written."""
    try:
        classes = len(found["classes"])
        height, width = found["pixels"]
        return (
            all(isinstance(each, str) for each in (found["labels"], *found["classes"]))
            and bool(found["parts"])
            and isinstance(height * width, int)
            and all(_is_part(part, classes) for part in found["parts"].values())
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _is_part(part: dict[str, Any], classes: int) -> bool:
    counts = [part[name] for name in ("class_images", "class_users")]
    curves = [part[f"{name}_percentiles"] for name in ("size", "class", "emd")]
    numbers = [part["users"], part["images"], part["mean_emd"], *chain(*counts, *curves)]
    return all(len(each) == classes for each in counts) and all(isinstance(each, int | float) for each in numbers)


def _counted(part: SplitStats) -> dict[str, Any]:
    return {
        "users": len(part.sizes_U),
        "images": int(part.sizes_U.sum()),
        "class_images": part.labels_C.tolist(),
        "class_users": part.holders_C.tolist(),
        "size_percentiles": _percentiles(part.sizes_U),
        "class_percentiles": _percentiles(part.classes_U),
        "emd_percentiles": _percentiles(part.emd_U),
        "mean_emd": round(part.mean_emd, 6),
    }


def _percentiles(values: NDArray[Any]) -> list[float]:
    found = np.percentile(values, np.linspace(0, 100, STEPS + 1)) if len(values) else np.zeros(0)
    return [round(float(value), 6) for value in found]
