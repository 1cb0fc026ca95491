"""Adaptive S2 cells: clients by location, smaller where there are more images (Hsu et al. 2020, section 4.2)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from s2sphere import CellId, LatLng

MAX_LEVEL = 30  # of a leaf cell, about a centimetre wide


def adaptive_cells(
    latitude: ArrayLike, longitude: ArrayLike, max_examples: int, min_examples: float | None = None
) -> NDArray[np.str_]:
    """Return the token of each example's cell, or "" without one.

    The six faces of the globe are split into four, again and again, until no cell has more than `max_examples`; cells
    with fewer than `min_examples` (by default a hundredth of that) are left out. Examples at one point stay together.
    """
    if max_examples < 1:
        raise ValueError(f"max_examples per cell is {max_examples}: set it to at least 1")
    leaf = leaf_cells(latitude, longitude)
    cell = np.zeros_like(leaf)
    unassigned = np.flatnonzero(leaf)
    for level in range(MAX_LEVEL + 1):
        ids, index, counts = np.unique(ancestors(leaf[unassigned], level), return_inverse=True, return_counts=True)
        is_final = (counts <= max_examples)[index] | (level == MAX_LEVEL)
        cell[unassigned[is_final]] = ids[index[is_final]]
        unassigned = unassigned[~is_final]
    ids, index, counts = np.unique(cell, return_inverse=True, return_counts=True)
    is_sparse = counts < (0.01 * max_examples if min_examples is None else min_examples)
    tokens = np.array([f"{cell_id:016x}".rstrip("0") for cell_id in ids.tolist()], np.str_)  # "" for 0
    return np.where(is_sparse, "", tokens)[index]


def leaf_cells(latitude: ArrayLike, longitude: ArrayLike) -> NDArray[np.uint64]:
    """Return the leaf cell of each location in degrees, or 0 if it is missing or not on the globe."""
    lat, lon = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
    if lat.ndim != 1 or lat.shape != lon.shape:
        raise ValueError(f"latitude is {lat.shape} and longitude {lon.shape}: give one of each per example")
    is_valid = (np.abs(lat) <= 90) & (np.abs(lon) <= 360)  # false for NaN too
    lon = lon + 360 * (lon <= -180) - 360 * (lon > 180)  # -180 is where 180 is
    locations, index = np.unique(np.stack([lat[is_valid], lon[is_valid]], axis=1), axis=0, return_inverse=True)
    ids = [CellId.from_lat_lng(LatLng.from_degrees(*location)).id() for location in locations.tolist()]
    leaf = np.zeros(len(lat), np.uint64)
    leaf[is_valid] = np.array(ids, np.uint64)[index.reshape(-1)]
    return leaf


def ancestors(leaf: NDArray[np.uint64], level: int) -> NDArray[np.uint64]:
    """Return the cell of one level around each leaf: its first 3 + 2 `level` bits, then a one and zeros."""
    lowest_bit = np.uint64(1 << 2 * (MAX_LEVEL - level))
    return np.asarray(leaf & ~np.uint64(2 * int(lowest_bit) - 1) | lowest_bit)
