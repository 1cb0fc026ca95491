"""S2 cells: users by place, smaller where there are more examples (Hsu et al. 2020, section 4.2, iNaturalist-Geo)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from s2sphere import CellId, LatLng

FINEST = 30  # the level of a leaf cell, about a centimetre wide


@dataclass(frozen=True, eq=False)
class Cells:
    """The cell of each example, and how many have none."""

    tokens: NDArray[np.str_]  # "" for an example that is left out
    missing: int  # examples without a place on the globe
    sparse: int  # examples in cells of fewer than N_min


def cells(latitude: ArrayLike, longitude: ArrayLike, most: int, least: float | None = None) -> Cells:
    """Split the globe's six faces into four, again and again, until no cell has more than N_max = `most` examples.

    Then leave out the cells of fewer than N_min = `least` (0.01 N_max). Examples at one point stay together.
    """
    if most < 1:
        raise ValueError(f"a cell may have at most {most} examples: give at least 1")
    leaf = leaves(latitude, longitude)
    found = np.zeros_like(leaf)
    open_ = np.flatnonzero(leaf)
    for level in range(FINEST + 1):
        ids, index, counts = np.unique(ancestors(leaf[open_], level), return_inverse=True, return_counts=True)
        settled = (counts <= most)[index] | (level == FINEST)
        found[open_[settled]] = ids[index[settled]]
        open_ = open_[~settled]
    ids, index, counts = np.unique(found, return_inverse=True, return_counts=True)
    sparse = (ids != 0) & (counts < (0.01 * most if least is None else least))
    tokens = np.where(sparse, "", [_token(int(i)) for i in ids])
    return Cells(tokens[index], int((leaf == 0).sum()), int(counts[sparse].sum()))


def leaves(latitude: ArrayLike, longitude: ArrayLike) -> NDArray[np.uint64]:
    """The leaf cell of each place in degrees; 0, which no cell has, where one is missing or not on the globe."""
    lat, lon = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
    if lat.ndim != 1 or lat.shape != lon.shape:
        raise ValueError(f"latitude is {lat.shape} and longitude {lon.shape}: give one of each for every example")
    placed = (np.abs(lat) <= 90) & (np.abs(lon) <= 360)  # false for NaN too
    lon = lon + 360 * (lon <= -180) - 360 * (lon > 180)  # -180 is where 180 is
    places, index = np.unique(np.stack([lat[placed], lon[placed]], axis=1), axis=0, return_inverse=True)
    ids = [CellId.from_lat_lng(LatLng.from_degrees(*place)).id() for place in places.tolist()]
    leaf = np.zeros(len(lat), np.uint64)
    leaf[placed] = np.array(ids, np.uint64)[index.reshape(-1)]
    return leaf


def ancestors(leaf: NDArray[np.uint64], level: int) -> NDArray[np.uint64]:
    """The cell of one level around each leaf: its first 3 + 2 `level` bits, then a one and zeros."""
    lowest = np.uint64(1 << 2 * (FINEST - level))
    above: NDArray[Any] = leaf & ~np.uint64(2 * int(lowest) - 1)
    return above | lowest


def _token(cell: int) -> str:
    return f"{cell:016x}".rstrip("0")
