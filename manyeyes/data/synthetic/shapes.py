"""Silhouettes and textures: what makes a class of the procedural world recognisable, whatever its colour or place.

A coarse class is one silhouette with one texture; a fine class is one choice of their four parameters (`looks`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32; NumPy's own annotations widen it
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Local:
    """The pixels [N, P, P] of N objects in the objects' own coordinates, with parameters [N, 1, 1] in 0..1."""

    u: Array  # right; the object lies within 1.2 of its centre
    v: Array  # down
    r: Array
    angle: Array
    a: Array
    b: Array
    count: Array  # how many teeth, petals or points
    pitch: Array  # cycles of the texture across the object


def looks(ranks: Ints) -> Array:
    """The parameters in 0..1 [F, 4] of fine classes, from the rank of each within its coarse class.

    An additive recurrence (Roberts' R4) rather than chance: neighbours differ and no two classes coincide.
    """
    ratio = 1.1673039782614187  # the positive root of x^5 = x + 1
    steps = ratio ** -np.arange(1.0, 5.0)
    return ((0.5 + np.outer(ranks, steps)) % 1).astype(np.float32)


def localise(u: Array, v: Array, look: Array) -> Local:
    """Coordinates [N, P, P] and looks [N, 4] as silhouettes and textures read them."""
    a, b, count, pitch = (look[:, k, None, None] for k in range(4))
    r, angle = np.sqrt(u * u + v * v), np.arctan2(v, u)
    return Local(u, v, r, angle, a, b, np.floor(count * 3), 1.6 + 1.2 * pitch)


def inside(coarse: int, at: Local) -> Array:
    """How far inside the silhouette of a coarse class each pixel lies, in radii; negative outside [N, P, P]."""
    return SILHOUETTES[coarse % len(SILHOUETTES)](at)


def texture(coarse: int, at: Local) -> Array:
    """The texture of a coarse class, from 0 to 1 [N, P, P]."""
    # Classes that share a silhouette differ in texture.
    kind = (coarse % len(SILHOUETTES) + coarse // len(SILHOUETTES)) % len(TEXTURES)
    return np.clip(0.5 + 1.2 * TEXTURES[kind](at), 0, 1)


def _disc(at: Local, x: float | Array, y: float | Array, radius: float | Array) -> Array:
    return radius - np.sqrt((at.u - x) ** 2 + (at.v - y) ** 2)


def _box(at: Local, width: float | Array, height: float | Array) -> Array:
    return np.minimum(width - np.abs(at.u), height - np.abs(at.v))


def _tower(at: Local) -> Array:
    roof = 0.35 * at.b * np.abs(at.u)
    return np.minimum(0.42 + 0.3 * at.a - np.abs(at.u), np.minimum(at.v + 0.95 - roof, 0.95 - at.v))


def _gear(at: Local) -> Array:
    rim = 0.75 + 0.17 * np.clip(2.5 * np.cos((6 + at.count) * at.angle), -1, 1)
    return np.minimum(rim - at.r, at.r - 0.2 - 0.15 * at.a)


def _pebble(at: Local) -> Array:
    wobble = 0.14 * np.cos(2 * at.angle + 6 * at.a) + 0.1 * np.cos(3 * at.angle + 6 * at.b)
    return 0.74 + wobble - at.r


def _peak(at: Local) -> Array:
    return np.minimum(0.6 - at.v, (at.v + 0.95) * (0.4 + 0.14 * at.a) - np.abs(at.u - 0.2 * (at.b - 0.5)))


def _flower(at: Local) -> Array:
    return 0.38 + 0.12 * at.a + 0.5 * np.abs(np.cos((4 + at.count) * at.angle / 2)) - at.r


def _bowl(at: Local) -> Array:
    return np.minimum(0.95 - np.sqrt(at.u**2 + ((at.v + 0.45) / (1.1 + 0.3 * at.a)) ** 2), at.v + 0.45)


def _face(at: Local) -> Array:
    spread, size = 0.42 + 0.12 * at.a, 0.27 + 0.1 * at.b
    ears = np.maximum(_disc(at, spread, -0.52, size), _disc(at, -spread, -0.52, size))
    return np.maximum(_disc(at, 0.0, 0.18, 0.72), ears)


def _drop(at: Local) -> Array:
    width = np.sqrt(np.clip(1 - at.v * at.v, 0, 1)) * (0.12 + (0.3 + 0.12 * at.a) * (1 + at.v))
    return np.where(np.abs(at.v) < 1, width, -1) - np.abs(at.u)


def _frame(at: Local) -> Array:
    edge = np.maximum(np.abs(at.u) / (0.62 + 0.2 * at.a), np.abs(at.v) / 0.82)
    return 0.8 * np.minimum(1 - edge, edge - 0.45 - 0.15 * at.b)


def _arch(at: Local) -> Array:
    across = np.where(at.v < 0, at.r, np.abs(at.u))
    return np.minimum(np.minimum(0.85 - across, across - 0.35 - 0.14 * at.a), 0.75 - at.v)


def _star(at: Local) -> Array:
    turn = (5 + at.count) * at.angle / (2 * np.pi) % 1
    return 0.36 + 0.08 * at.a + 0.58 * np.abs(2 * turn - 1) ** 1.3 - at.r


def _lens(at: Local) -> Array:
    off = 0.55 + 0.3 * at.a
    reach = np.sqrt(0.9 + off * off)
    return np.minimum(_disc(at, 0.0, off, reach), _disc(at, 0.0, -off, reach))


def _heart(at: Local) -> Array:
    dent = at.v - 0.2 + (0.45 + 0.25 * at.a) * np.sqrt(np.abs(at.u))
    return 0.78 - np.sqrt((1.05 * at.u) ** 2 + dent * dent)


def _flame(at: Local) -> Array:
    lean = at.u + (0.18 + 0.1 * at.a) * np.sin((4 + at.b) * at.v)
    width = np.sqrt(np.clip(1 - at.v * at.v, 0, 1)) * (0.1 + 0.27 * (1 + at.v))
    return np.where(np.abs(at.v) < 1, width, -1) - np.abs(lean)


def _wave(at: Local) -> Array:
    crest = (0.3 + 0.12 * at.a) * np.sin((3.6 + 1.4 * at.b) * at.u)
    return np.minimum(0.28 - np.abs(at.v - crest), 0.92 - np.abs(at.u))


def _cross(at: Local) -> Array:
    arm = 0.24 + 0.12 * at.a
    return np.maximum(_box(at, arm, 0.95), _box(at, 0.95, arm))


def _crescent(at: Local) -> Array:
    return np.minimum(0.92 - at.r, -_disc(at, 0.38 + 0.12 * at.a, 0.0, 0.62 + 0.1 * at.b))


def _smooth(at: Local) -> Array:
    return 0.4 * at.v + 0.1


def _stripes(at: Local) -> Array:
    return np.sin(np.pi * at.pitch * at.u + 1)


def _checks(at: Local) -> Array:
    return 1.5 * np.sin(np.pi * at.pitch * at.u) * np.sin(np.pi * at.pitch * at.v)


def _dots(at: Local) -> Array:
    bumps = np.cos(np.pi * at.pitch * 1.3 * at.u) * np.cos(np.pi * at.pitch * 1.3 * at.v)
    return 2 * (np.abs(bumps) - 0.45)


def _rings(at: Local) -> Array:
    return np.cos(2 * np.pi * at.pitch * 0.8 * at.r)


def _rays(at: Local) -> Array:
    return np.sin(np.floor(2 + 2 * at.pitch) * at.angle)


def _ripples(at: Local) -> Array:
    return np.sin(np.pi * at.pitch * 1.2 * (at.v + 0.25 * np.sin(5 * at.u)))


def _mesh(at: Local) -> Array:
    lines = np.maximum(np.cos(np.pi * 1.4 * at.pitch * (at.u + at.v)), np.cos(np.pi * 1.4 * at.pitch * (at.u - at.v)))
    return 2 * (lines - 0.6)


SILHOUETTES: tuple[Callable[[Local], Array], ...] = (
    _tower, _gear, _pebble, _peak, _flower, _bowl, _face, _drop, _frame,
    _arch, _star, _lens, _heart, _flame, _wave, _cross, _crescent,
)  # fmt: skip
TEXTURES: tuple[Callable[[Local], Array], ...] = (
    _stripes, _smooth, _checks, _rays, _rings, _dots, _ripples, _mesh,
)  # fmt: skip
MOST_CLASSES = len(SILHOUETTES) * len(TEXTURES)
