"""Silhouettes and textures: what identifies a class of the synthetic images, whatever its color or position.

A coarse class has one silhouette and one texture; a fine class has its own values of their four parameters
(`appearances`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import clip, cos, floor, maximum, minimum, pi, sin, sqrt
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
    return LocalGrid(u, v, sqrt(u * u + v * v), np.arctan2(v, u), a, b, floor(count * 3), 1.6 + 1.2 * pitch)


def silhouette_depth(coarse: int, at: LocalGrid) -> Array:
    """Return how far inside a coarse class's silhouette each pixel lies, in radii; negative outside [N, P, P]."""
    return _SILHOUETTES[coarse % len(_SILHOUETTES)](at)


def texture(coarse: int, at: LocalGrid) -> Array:
    """Return the texture of a coarse class, from 0 to 1 [N, P, P]; classes that share a silhouette have different ones."""
    kind = (coarse % len(_SILHOUETTES) + coarse // len(_SILHOUETTES)) % len(_TEXTURES)
    return clip(0.5 + 1.2 * _TEXTURES[kind](at), 0, 1)


def _disc(u: Array, v: Array, radius: float | Array) -> Array:
    return radius - sqrt(u**2 + v**2)


def _box(at: LocalGrid, width: float | Array, height: float | Array) -> Array:
    return minimum(width - abs(at.u), height - abs(at.v))


def _teardrop(u: Array, v: Array, point: float, widening: float | Array) -> Array:
    width = sqrt(clip(1 - v * v, 0, 1)) * (point + widening * (1 + v))
    return np.where(abs(v) < 1, width, -1) - abs(u)


def _frame(at: LocalGrid) -> Array:
    edge = maximum(abs(at.u) / (0.62 + 0.2 * at.a), abs(at.v) / 0.82)
    return 0.8 * minimum(1 - edge, edge - 0.45 - 0.15 * at.b)


def _arch(at: LocalGrid) -> Array:
    across = np.where(at.v < 0, at.r, abs(at.u))
    return minimum(minimum(0.85 - across, across - 0.35 - 0.14 * at.a), 0.75 - at.v)


SILHOUETTES: dict[str, Callable[[LocalGrid], Array]] = {  # depth of a point inside the silhouette
    "tower": lambda p: minimum(0.42 + 0.3 * p.a - abs(p.u), minimum(p.v + 0.95 - 0.35 * p.b * abs(p.u), 0.95 - p.v)),
    "gear": lambda p: minimum(
        0.75 + 0.17 * clip(2.5 * cos((6 + p.count) * p.angle), -1, 1) - p.r, p.r - 0.2 - 0.15 * p.a
    ),
    "pebble": lambda p: 0.74 + (0.14 * cos(2 * p.angle + 6 * p.a) + 0.1 * cos(3 * p.angle + 6 * p.b)) - p.r,
    "peak": lambda p: minimum(0.6 - p.v, (p.v + 0.95) * (0.4 + 0.14 * p.a) - abs(p.u - 0.2 * (p.b - 0.5))),
    "flower": lambda p: 0.38 + 0.12 * p.a + 0.5 * abs(cos((4 + p.count) * p.angle / 2)) - p.r,
    "bowl": lambda p: minimum(_disc(p.u, (p.v + 0.45) / (1.1 + 0.3 * p.a), 0.95), p.v + 0.45),
    "face": lambda p: maximum(
        _disc(p.u, p.v - 0.18, 0.72), _disc(abs(p.u) - (0.42 + 0.12 * p.a), p.v + 0.52, 0.27 + 0.1 * p.b)
    ),
    "drop": lambda p: _teardrop(p.u, p.v, 0.12, 0.3 + 0.12 * p.a),
    "frame": _frame,
    "arch": _arch,
    "star": lambda p: 0.36 + 0.08 * p.a + 0.58 * abs(2 * ((5 + p.count) * p.angle / (2 * pi) % 1) - 1) ** 1.3 - p.r,
    "lens": lambda p: _disc(p.u, abs(p.v) + (0.55 + 0.3 * p.a), sqrt(0.9 + (0.55 + 0.3 * p.a) ** 2)),
    "heart": lambda p: _disc(1.05 * p.u, p.v - 0.2 + (0.45 + 0.25 * p.a) * sqrt(abs(p.u)), 0.78),
    "flame": lambda p: _teardrop(p.u + (0.18 + 0.1 * p.a) * sin((4 + p.b) * p.v), p.v, 0.1, 0.27),
    "wave": lambda p: minimum(0.28 - abs(p.v - (0.3 + 0.12 * p.a) * sin((3.6 + 1.4 * p.b) * p.u)), 0.92 - abs(p.u)),
    "cross": lambda p: maximum(_box(p, 0.24 + 0.12 * p.a, 0.95), _box(p, 0.95, 0.24 + 0.12 * p.a)),
    "crescent": lambda p: minimum(0.92 - p.r, -_disc(p.u - (0.38 + 0.12 * p.a), p.v, 0.62 + 0.1 * p.b)),
}
TEXTURES: dict[str, Callable[[LocalGrid], Array]] = {  # roughly from -0.5 to 0.5
    "stripes": lambda p: sin(pi * p.pitch * p.u + 1),
    "smooth": lambda p: 0.4 * p.v + 0.1,
    "checks": lambda p: 1.5 * sin(pi * p.pitch * p.u) * sin(pi * p.pitch * p.v),
    "rays": lambda p: sin(floor(2 + 2 * p.pitch) * p.angle),
    "rings": lambda p: cos(2 * pi * p.pitch * 0.8 * p.r),
    "dots": lambda p: 2 * (abs(cos(pi * p.pitch * 1.3 * p.u) * cos(pi * p.pitch * 1.3 * p.v)) - 0.45),
    "ripples": lambda p: sin(pi * p.pitch * 1.2 * (p.v + 0.25 * sin(5 * p.u))),
    "mesh": lambda p: 2 * (maximum(*(cos(pi * 1.4 * p.pitch * diagonal) for diagonal in (p.u + p.v, p.u - p.v))) - 0.6),
}
_SILHOUETTES, _TEXTURES = tuple(SILHOUETTES.values()), tuple(TEXTURES.values())
MAX_COARSE_CLASSES = len(SILHOUETTES) * len(TEXTURES)
