"""Adaptive S2 cells, against s2sphere's own cells split one by one."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s2sphere import CellId, LatLng

from manyeyes.data.datasets.s2_cells import ancestors, cells, leaves

Place = tuple[float, float]
PLACES = st.tuples(st.floats(-90, 90, width=32), st.floats(-180, 180, width=32, exclude_min=True))


def plainly(places: list[Place], most: int, least: float) -> list[str]:
    """As the paper says it, with s2sphere's objects alone."""
    leaf = [CellId.from_lat_lng(LatLng.from_degrees(*place)) for place in places]
    final, todo = [], [CellId.from_face_pos_level(face, 0, 0) for face in range(6)]
    while todo:
        cell = todo.pop()
        inside = sum(cell.contains(one) for one in leaf)
        if inside > most and not cell.is_leaf():
            todo += list(cell.children())
        elif inside >= least:
            final.append(cell)
    return [next((cell.to_token() for cell in final if cell.contains(one)), "") for one in leaf]


@given(st.lists(PLACES, min_size=1, max_size=30), st.integers(1, 8), st.integers(0, 3))
def test_cells_equal_those_of_splitting_one_by_one(places: list[Place], most: int, least: int) -> None:
    found = cells(*np.array(places).T, most=most, least=least)
    assert found.tokens.tolist() == plainly(places, most, least)


def test_places_in_cities_equal_those_of_splitting_one_by_one() -> None:
    g = np.random.default_rng(0)
    city = g.uniform([-80, -180], [80, 180], (5, 2))[g.integers(5, size=300)]
    places = city + g.normal(0, 0.5, (300, 2))
    found = cells(*places.T, most=20, least=3)
    assert found.tokens.tolist() == plainly([(lat, lon) for lat, lon in places], 20, 3)
    assert len(set(found.tokens)) > 15


@pytest.mark.parametrize("level", [0, 1, 13, 29, 30])
def test_ancestors_are_the_parents_of_s2sphere(level: int) -> None:
    leaf = leaves([48.85, -33.9, 0.0], [2.35, 151.2, 180.0])
    assert ancestors(leaf, level).tolist() == [CellId(int(one)).parent(level).id() for one in leaf]


def test_no_cell_has_more_than_most_or_fewer_than_a_hundredth_of_it() -> None:
    g = np.random.default_rng(1)
    lat, lon = g.normal(40, 8, 5000), g.normal(-100, 20, 5000)
    found = cells(lat, lon, most=300)
    counts = np.unique(found.tokens[found.tokens != ""], return_counts=True)[1]
    assert counts.max() <= 300
    assert counts.min() >= 3
    assert found.sparse == (found.tokens == "").sum() > 0


def test_few_examples_stay_on_their_faces() -> None:
    assert cells([0, 0, 90], [0, 90, 0], most=10).tokens.tolist() == ["1", "3", "5"]  # faces 0, 1, 2: a bit and a one


def test_both_sides_of_the_antimeridian_are_one_place() -> None:
    assert len(set(cells([10, 10], [180, -180], most=1).tokens)) == 1
    assert len(set(cells([10, 10], [190, -170], most=1).tokens)) == 1


def test_a_pole_is_one_place_whatever_its_longitude() -> None:
    assert len(set(cells([90, 90, 90], [0, 77, -180], most=3).tokens)) == 1
    assert cells([-90], [0], most=3).tokens.tolist() == ["b"]


def test_more_examples_at_one_point_than_a_cell_may_have_stay_together() -> None:
    found = cells([1.5] * 9, [2.5] * 9, most=2)
    assert set(found.tokens) == {CellId.from_lat_lng(LatLng.from_degrees(1.5, 2.5)).to_token()}


def test_missing_and_impossible_places_are_left_out_and_counted() -> None:
    found = cells([np.nan, 3, 91, np.inf, 5], [3, np.nan, 0, np.inf, 5], most=10)
    assert found.tokens.tolist() == ["", "", "", "", "1"]
    assert (found.missing, found.sparse) == (4, 0)


def test_nobody_has_a_place() -> None:
    assert cells([np.nan], [np.nan], most=1).tokens.tolist() == [""]


def test_coordinates_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match=r"latitude is \(2,\) and longitude \(1,\)"):
        cells([1, 2], [1], most=1)


def test_a_cell_of_no_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 0"):
        cells([1], [1], most=0)


def test_as_many_places_as_inaturalist_has_take_seconds() -> None:
    g = np.random.default_rng(2)
    lat, lon = np.degrees(np.arcsin(g.uniform(-1, 1, 120_300))), g.uniform(-180, 180, 120_300)
    start = time.process_time()
    assert len(cells(lat, lon, most=100).tokens) == 120_300
    assert time.process_time() - start < 20  # about 2 when nothing else runs
