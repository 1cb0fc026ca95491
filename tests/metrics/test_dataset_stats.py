"""The dataset statistics of a run, against counts by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from manyeyes.core.population import Population, SingleLabels
from manyeyes.metrics.heterogeneity import dataset_stats, is_valid

Stats = dict[str, Any]


@pytest.fixture
def stats() -> Stats:
    """Return the statistics of a user with three images of class a and one with one image of b."""
    labels = SingleLabels(np.array([0, 0, 0, 1]), ("a", "b", "c"))
    population = Population.from_arrays(np.zeros((4, 6, 8, 3), np.uint8), labels, np.array([7, 7, 7, 9]))
    content: Stats = json.loads(json.dumps(dataset_stats({"train": population, "test": None})))
    return content


def test_users_images_and_classes_are_counted(stats: Stats) -> None:
    assert (stats["classes"], stats["labels"], stats["pixels"]) == (["a", "b", "c"], "one per image", [6, 8])
    split = stats["splits"]["train"]
    assert list(stats["splits"]) == ["train"]
    assert (split["users"], split["images"]) == (2, 4)
    assert (split["class_images"], split["class_users"]) == ([3, 1, 0], [1, 1, 0])
    assert (split["size_percentiles"][0], split["size_percentiles"][50], split["size_percentiles"][-1]) == (1, 2, 3)


def test_heterogeneity_is_the_earth_movers_distance_by_hand(stats: Stats) -> None:
    """p is (3/4, 1/4): the first user is 1/4 + 1/4 away, the second 3/4 + 3/4; weighted by images, 3/4."""
    split = stats["splits"]["train"]
    assert (split["emd_percentiles"][0], split["emd_percentiles"][-1]) == (0.5, 1.5)
    assert split["mean_emd"] == 0.75


@pytest.mark.parametrize(
    "damage",
    [{"classes": ["a"]}, {"classes": 3}, {"labels": None}, {"splits": {}}, {"splits": 3}, {"pixels": ["x", 8]}],
)
def test_damaged_statistics_are_not_valid(stats: Stats, damage: Stats) -> None:
    assert is_valid(stats)
    assert not is_valid({**stats, **damage})
