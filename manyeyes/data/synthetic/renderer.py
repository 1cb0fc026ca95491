"""Painter: from a description of photographs (scene, objects, camera) to their pixels."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.rng import make_rng
from manyeyes.data.synthetic.shapes import Array, Ints, inside, localise, texture


@dataclass(frozen=True, eq=False)
class Scene:
    """Photographs before anything stands in them, one row a photograph; colours are RGB in 0..1."""

    user: Ints
    number: Ints  # which of the user's photographs
    sky: Array  # [N, 3]
    ground: Array  # [N, 3]
    horizon: Array  # height of the horizon, 0 (top) to 1
    relief: Array  # strength of the background's texture
    light: Array  # [N, 2] where the light comes from, right and down
    gain: Array  # [N, 3] the camera's white balance and exposure
    contrast: Array
    vignette: Array
    blur: Array  # 0 (sharp) to 1
    noise: Array

    def take(self, rows: NDArray[np.int64] | slice) -> Scene:
        return Scene(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def join(scenes: list[Scene]) -> Scene:
        return Scene(*(np.concatenate([getattr(s, f.name) for s in scenes]) for f in fields(Scene)))


@dataclass(frozen=True, eq=False)
class RenderedObjects:
    """What stands in the photographs, one row an object, a photograph's rows together and from back to front."""

    photo: Ints
    coarse: Ints
    look: Array  # [O, 4]
    x: Array  # centre and radius in sides of the image
    y: Array
    radius: Array
    stretch: Array  # width over height
    turn: Array  # radians
    body: Array  # [O, 3] the colour, and that of the texture on it
    trim: Array  # [O, 3]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> RenderedObjects:
        return RenderedObjects(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def join(groups: list[RenderedObjects], photos: Ints) -> RenderedObjects:
        """The objects of several sets of photographs, whose numbers of photographs are given."""
        moved = [replace(g, photo=g.photo + start) for g, start in zip(groups, np.cumsum(photos) - photos, strict=True)]
        return RenderedObjects(*(np.concatenate([getattr(g, f.name) for g in moved]) for f in fields(RenderedObjects)))


def paint(scene: Scene, objects: RenderedObjects, size: int, seed: int) -> NDArray[np.uint8]:
    """The photographs [N, size, size, 3]; each depends on nothing but its own rows and the seed."""
    images = np.empty((len(scene.user), size, size, 3), np.uint8)
    batch = max(1, 2**20 // size**2)  # floats that stay in the cache
    for start in range(0, len(images), batch):
        part = scene.take(slice(start, start + batch))
        first, last = np.searchsorted(objects.photo, [start, start + batch])
        here = objects.take(np.arange(first, last))
        generators = [make_rng(seed, "film", n, u) for u, n in zip(part.user, part.number, strict=True)]
        canvas = _background(part, size, generators)
        _place(canvas, here, here.photo - start, part)
        images[start : start + batch] = _develop(canvas, part, generators)
    return images


def _background(scene: Scene, size: int, generators: list[np.random.Generator]) -> Array:
    """Sky over ground with a soft horizon, and a cloudy relief of two scales [N, H, W, 3]."""
    relief = np.zeros((len(scene.user), size, size), np.float32)
    for cells, strength in ((4, 0.7), (11, 0.5)):
        heights = np.stack([g.standard_normal((cells, cells), np.float32) for g in generators])
        spread = _interpolation(size, cells)
        relief += strength * (spread @ heights @ spread.T)
    rows = _pixels(size)[None, :, None]
    edge = scene.horizon[:, None, None] + 0.12 * relief * scene.relief[:, None, None] * 4
    below = _step((rows - edge) * 6)[..., None]
    fade = 1 + 0.25 * (rows - 0.5)[..., None]  # the sky is lighter and the ground darker towards us
    canvas = scene.sky[:, None, None] * fade + below * (
        scene.ground[:, None, None] / fade - scene.sky[:, None, None] * fade
    )
    return canvas + (relief * scene.relief[:, None, None])[..., None]


def _place(canvas: Array, objects: RenderedObjects, photo: Ints, scene: Scene) -> None:
    """Put the objects into the canvas [N, H, W, 3], in order."""
    size = canvas.shape[1]
    grain = max(2, size // 16)  # patches come in few sizes, so that equal ones are drawn together
    reach = np.ceil((1.2 * size * objects.radius * np.maximum(1, objects.stretch) + 2) / grain).astype(np.int64) * grain
    centre = np.floor(np.stack([objects.y, objects.x], 1) * size).astype(np.int64)
    corner = centre - reach[:, None]
    patches: dict[int, tuple[Array, Array]] = {}
    kinds, kind = np.unique(np.stack([objects.coarse, reach], 1), axis=0, return_inverse=True)
    for k, (coarse, half) in enumerate(kinds):
        members = np.flatnonzero(kind == k)
        keep, paint = _patch(
            objects.take(members), int(coarse), corner[members], 2 * int(half), size, scene.light[photo[members]]
        )
        patches.update(zip(members.tolist(), zip(keep, paint, strict=True), strict=True))
    first = np.maximum(corner, 0)
    last = np.minimum(corner + 2 * reach[:, None], size)
    for i in range(len(photo)):
        (top, left), (bottom, right) = first[i], last[i]
        window = slice(top - corner[i, 0], bottom - corner[i, 0]), slice(left - corner[i, 1], right - corner[i, 1])
        keep, paint = patches[i]
        target = canvas[photo[i], top:bottom, left:right]
        target *= keep[window]
        target += paint[window]


def _patch(
    objects: RenderedObjects, coarse: int, corner: Ints, side: int, size: int, light: Array
) -> tuple[Array, Array]:
    """What objects of one class leave of the canvas [N, P, P, 1] and what they add to it [N, P, P, 3]."""
    ticks = np.arange(side, dtype=np.float32) + np.float32(0.5)
    dx = ((corner[:, 1, None] + ticks) / size - objects.x[:, None]).astype(np.float32)[:, None, :]
    dy = ((corner[:, 0, None] + ticks) / size - objects.y[:, None]).astype(np.float32)[:, :, None]
    cos, sin, radius = (z[:, None, None] for z in (np.cos(objects.turn), np.sin(objects.turn), objects.radius))
    u = (dx * cos + dy * sin) / (radius * objects.stretch[:, None, None])
    v = (dy * cos - dx * sin) / radius
    at = localise(u, v, objects.look)
    depth = inside(coarse, at)
    cover = np.clip(depth * radius * size + 0.5, 0, 1)  # antialiased over one pixel
    shade = 1 + 0.22 * np.clip(dx / radius * light[:, 0, None, None] + dy / radius * light[:, 1, None, None], -1, 1)
    shade *= 0.72 + 0.28 * np.clip(depth * 6, 0, 1)  # rounded towards the rim
    colour = objects.body[:, None, None] + texture(coarse, at)[..., None] * (objects.trim - objects.body)[:, None, None]
    fall = max(1, size // 32)
    shadow = np.roll(np.clip(0.6 + depth * 2.5, 0, 1), (fall, fall), (1, 2)) * _hem(side)
    keep = (1 - 0.35 * shadow) * (1 - cover)
    return keep[..., None], colour * (shade * cover)[..., None]


def _develop(canvas: Array, scene: Scene, generators: list[np.random.Generator]) -> NDArray[np.uint8]:
    """What the camera makes of the light [N, H, W, 3]."""
    size = canvas.shape[1]
    canvas = _soften(canvas, scene.blur, passes=max(1, size // 48))
    canvas = (canvas - 0.5) * scene.contrast[:, None, None, None] + 0.5
    away = _pixels(size) - 0.5
    vignette = 1 - scene.vignette[:, None, None] * (away[:, None] ** 2 + away[None, :] ** 2)
    canvas *= vignette[..., None]
    canvas *= scene.gain[:, None, None]
    grain = np.stack([g.standard_normal((size, size, 3), np.float32) for g in generators])
    canvas += grain * scene.noise[:, None, None, None]
    return np.clip(canvas * 255 + 0.5, 0, 255).astype(np.uint8)


def _soften(canvas: Array, blur: Array, passes: int) -> Array:
    """Blur each photograph by repeated averages of three neighbours along both axes."""
    weight = (0.33 * blur)[:, None, None, None]
    for _ in range(passes):
        for axis in (1, 2):
            padded = np.pad(canvas, [(1, 1) if a == axis else (0, 0) for a in range(4)], mode="edge")
            ahead, behind = (slice(2, None), slice(None, -2))
            both = padded[:, ahead] + padded[:, behind] if axis == 1 else padded[:, :, ahead] + padded[:, :, behind]
            canvas = canvas + weight * (both - 2 * canvas)
    return canvas


def _pixels(size: int) -> Array:
    """The centres of the pixels along one side, in 0..1."""
    return ((np.arange(size) + 0.5) / size).astype(np.float32)


def _interpolation(size: int, cells: int) -> Array:
    """The matrix [size, cells] that spreads values on a coarse grid smoothly over the pixels."""
    place = _pixels(size)[:, None] * (cells - 1) - np.arange(cells, dtype=np.float32)
    return (0.5 + 0.5 * np.cos(np.pi * np.clip(place, -1, 1))).astype(np.float32)


def _step(x: Array) -> Array:
    """A smooth step from 0 (x <= -1) to 1 (x >= 1)."""
    y = np.clip(0.5 + 0.5 * x, 0, 1)
    return y * y * (3 - 2 * y)


def _hem(side: int) -> Array:
    """1 within a patch and 0 on its border, so that no shadow ends in a line [P, P]."""
    ramp = np.clip(np.minimum(np.arange(side), side - 1 - np.arange(side)) / (0.12 * side), 0, 1).astype(np.float32)
    return ramp[:, None] * ramp
