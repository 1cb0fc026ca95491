"""The numbers that papers count in their datasets, against values counted by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.papers import EXHIBITS
from manyeyes.papers.exhibit import ExhibitRow
from manyeyes.papers.statistics import COUNTS, LABEL_COUNTS, Statistic, users_with_class

# User 0 has images 0 to 5, user 1 images 6 and 7, user 2 image 8 (for testing), user 3 image 9 (for validation).
USERS = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 3])
SPLIT = np.array(["train"] * 8 + ["test", "val"])
LABELS = MultiLabels.from_lists([[0], [0, 1], [0], [1], [], [0], [2], [0, 2], [0], []], ("sky", "sea", "sun"))
POPULATION = Population.from_arrays(np.zeros((10, 1, 1, 3), np.uint8), LABELS, USERS, split=SPLIT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("users", 4),
        ("images", 10),
        ("classes", 3),
        ("train users", 2),
        ("train images", 8),
        ("val images", 1),
        ("test images", 1),
        ("min train images per user", 2),
        ("max train images per user", 6),
        ("users with half of the images", 0.25),  # one user of four has six of ten
        ("classes with 10 test images", 0),
    ],
)
def test_a_count_equals_a_count_by_hand(name: str, value: float) -> None:
    assert Statistic(name).compute(POPULATION) == value


def test_a_thousandth_of_the_users_is_counted_only_where_it_is_a_user() -> None:
    """One of 2,000 users has sky, which is fewer than two, and the others have sea."""
    name = "classes of fewer than 0.1 % of users"
    assert Statistic(name).compute(POPULATION) is None
    labels = SingleLabels(np.array([0] + [1] * 1999), ("sky", "sea"))
    population = Population.from_arrays(np.zeros((2000, 1, 1, 3), np.uint8), labels, np.arange(2000))
    assert Statistic(name).compute(population) == 1


def test_mean_emd_equals_a_computation_by_hand() -> None:
    """User 0 has 4 sky and 2 sea, user 1 one sky and 2 sun: p is (5, 2, 2) / 9, weighted by 6 and 3 labels."""
    first = abs(4 / 6 - 5 / 9) + abs(2 / 6 - 2 / 9) + 2 / 9
    second = abs(1 / 3 - 5 / 9) + 2 / 9 + abs(2 / 3 - 2 / 9)
    assert Statistic("mean EMD").compute(POPULATION) == pytest.approx((6 * first + 3 * second) / 9)


def test_images_and_users_of_a_label() -> None:
    assert Statistic("images with", "sky").compute(POPULATION) == 6
    assert Statistic("users with", "sky").compute(POPULATION) == 0.75
    assert Statistic("users with", "sun").compute(POPULATION) == 0.25
    assert users_with_class(POPULATION).tolist() == [3, 1, 1]


def test_half_of_equal_users_have_half_of_the_images() -> None:
    population = Population.from_arrays(
        np.zeros((8, 1, 1, 3), np.uint8), LABELS.take(np.arange(8)), np.repeat(np.arange(4), 2)
    )
    assert COUNTS["users with half of the images"](population) == 0.5


def statistics() -> Iterator[tuple[ExhibitRow, Statistic]]:
    for exhibit in EXHIBITS.values():
        for row in exhibit.rows:
            yield from ((row, metric) for metric in row.expected if isinstance(metric, Statistic))


def test_every_count_that_a_paper_prints_is_known() -> None:
    names = {(statistic.name, bool(statistic.label)) for _, statistic in statistics()}
    assert names
    assert names <= {*((name, False) for name in COUNTS), *((name, True) for name in LABEL_COUNTS)}


def test_a_count_of_one_of_several_datasets_names_it() -> None:
    for row, statistic in statistics():
        if statistic.path_suffix:
            assert sum(dataset.path.endswith(statistic.path_suffix) for dataset in row.datasets) == 1
