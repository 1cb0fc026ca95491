"""Silhouettes and textures: what identifies a class of the synthetic images, whatever its color or position.

A coarse class has one silhouette and one texture; a fine class has its own values of their four parameters
(`appearances`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints

Array = NDArray[np.floating[Any]]  # float32; NumPy's own annotations widen it
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LocalGrid:
    """The pixels [N, P, P] of N objects in the objects' own coordinates, with parameters [N, 1, 1] in 0..1."""

    u: Array  # right; the object lies within 1.2 of its center
    v: Array  # down
    r: Array
    angle: Array
    a: Array
    b: Array
    count: Array  # how many teeth, petals or points
    pitch: Array  # cycles of the texture across the object


def appearances(ranks: Ints) -> Array:
    """Return the parameters in 0..1 [F, 4] of fine classes, from the rank of each within its coarse class.

    They follow an additive recurrence (Roberts' R4): unlike random numbers, neighbors differ and none coincide.
    """
    ratio = 1.1673039782614187  # the positive root of x^5 = x + 1
    steps = ratio ** -np.arange(1.0, 5.0)
    return ((0.5 + np.outer(ranks, steps)) % 1).astype(np.float32)


def to_local(u: Array, v: Array, appearance: Array) -> LocalGrid:
    """Return the grid for coordinates [N, P, P] and parameters [N, 4]."""
    a, b, count, pitch = (appearance[:, k, None, None] for k in range(4))
    return LocalGrid(u, v, np.sqrt(u * u + v * v), np.arctan2(v, u), a, b, np.floor(count * 3), 1.6 + 1.2 * pitch)


def silhouette_depth(coarse: int, at: LocalGrid) -> Array:
    """Return how far inside a coarse class's silhouette each pixel lies, in radii; negative outside [N, P, P]."""
    return _SILHOUETTES[coarse % len(_SILHOUETTES)](at)


def texture(coarse: int, at: LocalGrid) -> Array:
    """Return the texture of a coarse class, from 0 to 1 [N, P, P]; classes that share a silhouette have different ones."""
    kind = (coarse % len(_SILHOUETTES) + coarse // len(_SILHOUETTES)) % len(_TEXTURES)
    return np.clip(0.5 + 1.2 * _TEXTURES[kind](at), 0, 1)


def _disc(u: Array, v: Array, radius: float | Array) -> Array:
    return radius - np.sqrt(u**2 + v**2)


def _box(at: LocalGrid, width: float | Array, height: float | Array) -> Array:
    return np.minimum(width - abs(at.u), height - abs(at.v))


def _teardrop(u: Array, v: Array, point: float, widening: float | Array) -> Array:
    width = np.sqrt(np.clip(1 - v * v, 0, 1)) * (point + widening * (1 + v))
    return np.where(abs(v) < 1, width, -1) - abs(u)


def _face(at: LocalGrid) -> Array:
    ears = _disc(abs(at.u) - (0.42 + 0.12 * at.a), at.v + 0.52, 0.27 + 0.1 * at.b)
    return np.maximum(_disc(at.u, at.v - 0.18, 0.72), ears)


def _frame(at: LocalGrid) -> Array:
    edge = np.maximum(abs(at.u) / (0.62 + 0.2 * at.a), abs(at.v) / 0.82)
    return 0.8 * np.minimum(1 - edge, edge - 0.45 - 0.15 * at.b)


def _arch(at: LocalGrid) -> Array:
    across = np.where(at.v < 0, at.r, abs(at.u))
    return np.minimum(np.minimum(0.85 - across, across - 0.35 - 0.14 * at.a), 0.75 - at.v)


SILHOUETTES: dict[str, Callable[[LocalGrid], Array]] = {  # depth inside the silhouette
    "tower": lambda at: np.minimum(
        0.42 + 0.3 * at.a - abs(at.u), np.minimum(at.v + 0.95 - 0.35 * at.b * abs(at.u), 0.95 - at.v)
    ),
    "gear": lambda at: np.minimum(
        0.75 + 0.17 * np.clip(2.5 * np.cos((6 + at.count) * at.angle), -1, 1) - at.r, at.r - 0.2 - 0.15 * at.a
    ),
    "pebble": lambda at: 0.74 + (0.14 * np.cos(2 * at.angle + 6 * at.a) + 0.1 * np.cos(3 * at.angle + 6 * at.b)) - at.r,
    "peak": lambda at: np.minimum(0.6 - at.v, (at.v + 0.95) * (0.4 + 0.14 * at.a) - abs(at.u - 0.2 * (at.b - 0.5))),
    "flower": lambda at: 0.38 + 0.12 * at.a + 0.5 * abs(np.cos((4 + at.count) * at.angle / 2)) - at.r,
    "bowl": lambda at: np.minimum(_disc(at.u, (at.v + 0.45) / (1.1 + 0.3 * at.a), 0.95), at.v + 0.45),
    "face": _face,
    "drop": lambda at: _teardrop(at.u, at.v, 0.12, 0.3 + 0.12 * at.a),
    "frame": _frame,
    "arch": _arch,
    "star": lambda at: (
        0.36 + 0.08 * at.a + 0.58 * abs(2 * ((5 + at.count) * at.angle / (2 * np.pi) % 1) - 1) ** 1.3 - at.r
    ),
    "lens": lambda at: _disc(at.u, abs(at.v) + (0.55 + 0.3 * at.a), np.sqrt(0.9 + (0.55 + 0.3 * at.a) ** 2)),
    "heart": lambda at: _disc(1.05 * at.u, at.v - 0.2 + (0.45 + 0.25 * at.a) * np.sqrt(abs(at.u)), 0.78),
    "flame": lambda at: _teardrop(at.u + (0.18 + 0.1 * at.a) * np.sin((4 + at.b) * at.v), at.v, 0.1, 0.27),
    "wave": lambda at: np.minimum(
        0.28 - abs(at.v - (0.3 + 0.12 * at.a) * np.sin((3.6 + 1.4 * at.b) * at.u)), 0.92 - abs(at.u)
    ),
    "cross": lambda at: np.maximum(_box(at, 0.24 + 0.12 * at.a, 0.95), _box(at, 0.95, 0.24 + 0.12 * at.a)),
    "crescent": lambda at: np.minimum(0.92 - at.r, -_disc(at.u - (0.38 + 0.12 * at.a), at.v, 0.62 + 0.1 * at.b)),
}
TEXTURES: dict[str, Callable[[LocalGrid], Array]] = {  # roughly from -0.5 to 0.5
    "stripes": lambda at: np.sin(np.pi * at.pitch * at.u + 1),
    "smooth": lambda at: 0.4 * at.v + 0.1,
    "checks": lambda at: 1.5 * np.sin(np.pi * at.pitch * at.u) * np.sin(np.pi * at.pitch * at.v),
    "rays": lambda at: np.sin(np.floor(2 + 2 * at.pitch) * at.angle),
    "rings": lambda at: np.cos(2 * np.pi * at.pitch * 0.8 * at.r),
    "dots": lambda at: 2 * (abs(np.cos(np.pi * at.pitch * 1.3 * at.u) * np.cos(np.pi * at.pitch * 1.3 * at.v)) - 0.45),
    "ripples": lambda at: np.sin(np.pi * at.pitch * 1.2 * (at.v + 0.25 * np.sin(5 * at.u))),
    "mesh": lambda at: (
        2 * (np.maximum(*(np.cos(np.pi * 1.4 * at.pitch * diagonal) for diagonal in (at.u + at.v, at.u - at.v))) - 0.6)
    ),
}
_SILHOUETTES, _TEXTURES = tuple(SILHOUETTES.values()), tuple(TEXTURES.values())
MAX_COARSE_CLASSES = len(SILHOUETTES) * len(TEXTURES)
