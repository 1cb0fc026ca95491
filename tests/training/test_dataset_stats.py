"""The census that a run keeps of its population, against counts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from manyeyes.core.population import Population, SingleLabels
from manyeyes.training.dataset_stats import is_valid, write_dataset_stats


@pytest.fixture
def counted(tmp_path: Path) -> dict:
    """Of a user with three images of class a and one with one image of b."""
    images = np.zeros((4, 6, 8, 3), np.uint8)
    people = Population.from_arrays(
        images, SingleLabels(np.array([0, 0, 0, 1]), ("a", "b", "c")), np.array([7, 7, 7, 9])
    )
    write_dataset_stats(tmp_path, {"train": people, "test": None})
    return json.loads((tmp_path / "population.json").read_text())


def test_it_counts_users_images_and_classes(counted: dict) -> None:
    assert (counted["classes"], counted["pixels"]) == (["a", "b", "c"], [6, 8])
    part = counted["parts"]["train"]
    assert list(counted["parts"]) == ["train"]
    assert (part["users"], part["images"]) == (2, 4)
    assert (part["class_images"], part["class_users"]) == ([3, 1, 0], [1, 1, 0])
    assert (part["size_percentiles"][0], part["size_percentiles"][50], part["size_percentiles"][-1]) == (1, 2, 3)


def test_its_skew_is_that_of_the_definition(counted: dict) -> None:
    """p is (3/4, 1/4): the first user is 1/4 + 1/4 away, the second 3/4 + 3/4; weighted by images, 3/4."""
    part = counted["parts"]["train"]
    assert (part["emd_percentiles"][0], part["emd_percentiles"][-1]) == (0.5, 1.5)
    assert part["mean_emd"] == 0.75


def test_what_is_not_whole_is_told(counted: dict) -> None:
    assert is_valid(counted)
    assert not is_valid({**counted, "classes": ["a"]})
    assert not is_valid({"parts": 3})
