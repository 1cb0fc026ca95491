"""Adaptive S2 cells, compared to cells of s2sphere that are split one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s2sphere import CellId, LatLng

from manyeyes.data.datasets.inaturalist import adaptive_cells, ancestors, leaf_cells

Location = tuple[float, float]
LOCATIONS = st.tuples(st.floats(-90, 90, width=32), st.floats(-180, 180, width=32, exclude_min=True))


def split_one_by_one(locations: list[Location], max_examples: int, min_examples: float) -> list[str]:
    """Return the tokens by the paper's rule, written with s2sphere's objects only."""
    leaf = [CellId.from_lat_lng(LatLng.from_degrees(*location)) for location in locations]
    final, todo = [], [CellId.from_face_pos_level(face, 0, 0) for face in range(6)]
    while todo:
        cell = todo.pop()
        inside = sum(cell.contains(leaf_cell) for leaf_cell in leaf)
        if inside > max_examples and not cell.is_leaf():
            todo += list(cell.children())
        elif inside >= min_examples:
            final.append(cell)
    return [next((cell.to_token() for cell in final if cell.contains(leaf_cell)), "") for leaf_cell in leaf]


@given(st.lists(LOCATIONS, min_size=1, max_size=30), st.integers(1, 8), st.integers(0, 3))
def test_cells_equal_those_of_splitting_one_by_one(locations: list[Location], limit: int, minimum: int) -> None:
    lat, lon = np.array(locations).T
    tokens = adaptive_cells(lat, lon, limit, minimum)
    assert tokens.tolist() == split_one_by_one(locations, limit, minimum)


def test_locations_in_cities_equal_those_of_splitting_one_by_one() -> None:
    g = np.random.default_rng(0)
    city = g.uniform([-80, -180], [80, 180], (5, 2))[g.integers(5, size=300)]
    locations = city + g.normal(0, 0.5, (300, 2))
    tokens = adaptive_cells(locations[:, 0], locations[:, 1], max_examples=20, min_examples=3)
    assert tokens.tolist() == split_one_by_one([(lat, lon) for lat, lon in locations], 20, 3)
    assert len(set(tokens)) > 15


@pytest.mark.parametrize("level", [0, 1, 13, 29, 30])
def test_ancestors_are_the_parents_of_s2sphere(level: int) -> None:
    leaf = leaf_cells([48.85, -33.9, 0.0], [2.35, 151.2, 180.0])
    assert ancestors(leaf, level).tolist() == [CellId(int(cell)).parent(level).id() for cell in leaf]


def test_no_cell_has_more_than_the_limit_or_fewer_than_a_hundredth_of_it() -> None:
    g = np.random.default_rng(1)
    tokens = adaptive_cells(g.normal(40, 8, 5000), g.normal(-100, 20, 5000), max_examples=300)
    counts = np.unique(tokens[tokens != ""], return_counts=True)[1]
    assert counts.max() <= 300
    assert counts.min() >= 3
    assert (tokens == "").any()


def test_few_examples_are_not_split_further_than_the_faces() -> None:
    assert adaptive_cells([0, 0, 90], [0, 90, 0], max_examples=10).tolist() == [
        "1",
        "3",
        "5",
    ]  # faces 0, 1, 2: a bit and a one


def test_both_sides_of_the_antimeridian_are_one_location() -> None:
    assert len(set(adaptive_cells([10, 10], [180, -180], max_examples=1))) == 1
    assert len(set(adaptive_cells([10, 10], [190, -170], max_examples=1))) == 1


def test_a_pole_is_one_location_for_every_longitude() -> None:
    assert len(set(adaptive_cells([90, 90, 90], [0, 77, -180], max_examples=3))) == 1
    assert adaptive_cells([-90], [0], max_examples=3).tolist() == ["b"]


def test_more_examples_at_one_point_than_the_limit_stay_together() -> None:
    tokens = adaptive_cells([1.5] * 9, [2.5] * 9, max_examples=2)
    assert set(tokens) == {CellId.from_lat_lng(LatLng.from_degrees(1.5, 2.5)).to_token()}


def test_missing_and_impossible_locations_have_no_cell() -> None:
    tokens = adaptive_cells([np.nan, 3, 91, np.inf, 5], [3, np.nan, 0, np.inf, 5], max_examples=10)
    assert tokens.tolist() == ["", "", "", "", "1"]


def test_no_example_has_a_location() -> None:
    assert adaptive_cells([np.nan], [np.nan], max_examples=1).tolist() == [""]


def test_coordinates_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match=r"latitude is \(2,\) and longitude \(1,\)"):
        adaptive_cells([1, 2], [1], max_examples=1)


def test_a_cell_of_no_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="max_examples per cell is 0"):
        adaptive_cells([1], [1], max_examples=0)


@pytest.mark.slow
def test_as_many_locations_as_inaturalist_has_are_assigned() -> None:
    g = np.random.default_rng(2)
    lat, lon = np.degrees(np.arcsin(g.uniform(-1, 1, 120_300))), g.uniform(-180, 180, 120_300)
    tokens = adaptive_cells(lat, lon, 100)
    assert len(tokens) == 120_300
    assert np.unique(tokens[tokens != ""], return_counts=True)[1].max() <= 100
