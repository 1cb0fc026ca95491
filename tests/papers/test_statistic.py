"""What the papers count in their data, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from manyeyes.core.population import MultiLabels, Population
from manyeyes.papers import ITEMS
from manyeyes.papers.statistics import COUNTS, Count, LabelImages, LabelUsers, half_holders, holders

# User 0 holds photos 0 to 5, user 1 photos 6 and 7, user 2 photo 8 (for testing), user 3 photo 9 (for validation).
USERS = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 3])
SPLIT = np.array(["train"] * 8 + ["test", "val"])
LABELS = MultiLabels.from_lists([[0], [0, 1], [0], [1], [], [0], [2], [0, 2], [0], []], ("sky", "sea", "sun"))
PEOPLE = Population.from_arrays(np.zeros((10, 1, 1, 3), np.uint8), LABELS, USERS, split=SPLIT)


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
        ("fewest train images of a user", 2),
        ("most train images of a user", 6),
        ("users with half of the images", 0.25),  # one user of four holds six of ten
        ("classes of fewer than 0.1 % of users", 0),
        ("classes with 10 test images", 0),
    ],
)
def test_a_count_is_that_of_a_hand(name: str, value: float) -> None:
    assert Count(name).compute(PEOPLE) == value


def test_mean_emd_is_that_of_a_hand() -> None:
    """User 0 has 4 sky and 2 sea, user 1 one sky and 2 sun: p is (5, 2, 2) / 9, weighted by 6 and 3 labels."""
    first = abs(4 / 6 - 5 / 9) + abs(2 / 6 - 2 / 9) + 2 / 9
    second = abs(1 / 3 - 5 / 9) + 2 / 9 + abs(2 / 3 - 2 / 9)
    assert Count("mean EMD").compute(PEOPLE) == pytest.approx((6 * first + 3 * second) / 9)


def test_images_and_users_of_a_label() -> None:
    assert LabelImages("sky").compute(PEOPLE) == 6
    assert LabelUsers("sky").compute(PEOPLE) == 0.75
    assert LabelUsers("sun").compute(PEOPLE) == 0.25
    assert holders(PEOPLE).tolist() == [3, 1, 1]


def test_equal_users_hold_half_together_when_they_are_half() -> None:
    people = Population.from_arrays(
        np.zeros((8, 1, 1, 3), np.uint8), LABELS.take(np.arange(8)), np.repeat(np.arange(4), 2)
    )
    assert half_holders(people) == 0.5


def test_every_count_that_a_paper_prints_is_known() -> None:
    used = {m.name for one in ITEMS.values() for row in one.rows for m in row.expected if isinstance(m, Count)}
    assert used
    assert used <= set(COUNTS)


def test_a_count_of_one_of_several_stores_names_it() -> None:
    for one in ITEMS.values():
        for row in one.rows:
            for measure in row.expected:
                if isinstance(measure, Count) and measure.store:
                    assert sum(store.path.endswith(measure.store) for store in row.stores) == 1
