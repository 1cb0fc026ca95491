"""The renderer: from a description of images (scene, objects, camera) to their pixels."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints
from manyeyes.core.rng import make_rng
from manyeyes.data.synthetic.shapes import Array, silhouette_depth, texture, to_local

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, eq=False)
class Scene:
    """Images without objects, one row per image; colors are RGB in 0..1."""

    user: Ints
    number: Ints  # which of the user's images
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


@dataclass(frozen=True, eq=False)
class RenderedObjects:
    """The objects in images, one row per object, those of an image together and from back to front."""

    image: Ints
    coarse: Ints
    appearance: Array  # [O, 4]
    x: Array  # center and radius in sides of the image
    y: Array
    radius: Array
    aspect_ratio: Array  # width over height
    rotation: Array  # radians
    color: Array  # [O, 3]
    texture_color: Array  # [O, 3]


Rows = TypeVar("Rows", bound="DataclassInstance")


def select(table: Rows, rows: NDArray[Any] | slice) -> Rows:
    return type(table)(*(getattr(table, column.name)[rows] for column in fields(table)))


def concatenate(tables: Sequence[Rows]) -> Rows:
    columns = (np.concatenate([getattr(table, column.name) for table in tables]) for column in fields(tables[0]))
    return type(tables[0])(*columns)


def render(scene: Scene, objects: RenderedObjects, size: int, seed: int) -> NDArray[np.uint8]:
    """Return the images [N, size, size, 3]; each depends only on its own rows and the seed."""
    images = np.empty((len(scene.user), size, size, 3), np.uint8)
    batch_size = max(1, 2**20 // size**2)  # so that a batch stays in the cache
    for start in range(0, len(images), batch_size):
        batch = select(scene, slice(start, start + batch_size))
        in_batch = select(objects, slice(*np.searchsorted(objects.image, [start, start + batch_size])))
        generators = [make_rng(seed, "film", n, u) for u, n in zip(batch.user, batch.number, strict=True)]
        canvas = _background(batch, size, generators)
        _draw_objects(canvas, in_batch, in_batch.image - start, batch.light)
        images[start : start + batch_size] = _apply_camera(canvas, batch, generators)
    return images


def _background(scene: Scene, size: int, generators: list[np.random.Generator]) -> Array:
    """Return sky over ground with a soft horizon, and a cloudy relief of two scales [N, H, W, 3]."""
    relief = np.zeros((len(scene.user), size, size), np.float32)
    for cells, strength in ((4, 0.7), (11, 0.5)):
        heights = np.stack([g.standard_normal((cells, cells), np.float32) for g in generators])
        distance = _pixel_centers(size)[:, None] * (cells - 1) - np.arange(cells, dtype=np.float32)
        interpolation = (0.5 + 0.5 * np.cos(np.pi * np.clip(distance, -1, 1))).astype(np.float32)  # [size, cells]
        relief += strength * (interpolation @ heights @ interpolation.T)
    rows = _pixel_centers(size)[None, :, None]
    edge = scene.horizon[:, None, None] + 0.12 * relief * scene.relief[:, None, None] * 4
    step = np.clip(0.5 + 0.5 * ((rows - edge) * 6), 0, 1)
    ground_weight = (step * step * (3 - 2 * step))[..., None]
    fade = 1 + 0.25 * (rows - 0.5)[..., None]  # the sky is lighter and the ground darker in front
    sky = scene.sky[:, None, None] * fade
    canvas = sky + ground_weight * (scene.ground[:, None, None] / fade - sky)
    return canvas + (relief * scene.relief[:, None, None])[..., None]


def _draw_objects(canvas: Array, objects: RenderedObjects, image: Ints, light: Array) -> None:
    """Draw the objects of these images of the canvas [N, H, W, 3], in order."""
    size = canvas.shape[1]
    step = max(2, size // 16)  # patches have few sizes, so that equal ones are rendered together
    radius = 1.2 * size * objects.radius * np.maximum(1, objects.aspect_ratio) + 2
    reach = np.ceil(radius / step).astype(np.int64) * step
    corner = np.floor(np.stack([objects.y, objects.x], 1) * size).astype(np.int64) - reach[:, None]
    patches: dict[int, tuple[Array, Array]] = {}
    kinds, kind = np.unique(np.stack([objects.coarse, reach], 1), axis=0, return_inverse=True)
    for k, (coarse, half) in enumerate(kinds):
        rows = np.flatnonzero(kind == k)
        grid = corner[rows], 2 * int(half), size
        transparency, paint = _render_patches(select(objects, rows), int(coarse), *grid, light[image[rows]])
        patches.update(zip(rows.tolist(), zip(transparency, paint, strict=True), strict=True))
    first, last = np.maximum(corner, 0), np.minimum(corner + 2 * reach[:, None], size)
    for i, (transparency, paint) in sorted(patches.items()):
        (top, left), (bottom, right) = first[i], last[i]
        window = slice(top - corner[i, 0], bottom - corner[i, 0]), slice(left - corner[i, 1], right - corner[i, 1])
        target = canvas[image[i], top:bottom, left:right]
        target *= transparency[window]
        target += paint[window]


def _render_patches(
    objects: RenderedObjects, coarse: int, corner: Ints, side: int, size: int, light: Array
) -> tuple[Array, Array]:
    """Return how much objects of one class leave of the canvas [N, P, P, 1] and what they add to it [N, P, P, 3]."""
    ticks = np.arange(side, dtype=np.float32) + np.float32(0.5)
    dx = ((corner[:, 1, None] + ticks) / size - objects.x[:, None]).astype(np.float32)[:, None, :]
    dy = ((corner[:, 0, None] + ticks) / size - objects.y[:, None]).astype(np.float32)[:, :, None]
    cos, sin, radius = (z[:, None, None] for z in (np.cos(objects.rotation), np.sin(objects.rotation), objects.radius))
    u = (dx * cos + dy * sin) / (radius * objects.aspect_ratio[:, None, None])
    v = (dy * cos - dx * sin) / radius
    at = to_local(u, v, objects.appearance)
    depth = silhouette_depth(coarse, at)
    cover = np.clip(depth * radius * size + 0.5, 0, 1)  # antialiased over one pixel
    shade = 1 + 0.22 * np.clip(dx / radius * light[:, 0, None, None] + dy / radius * light[:, 1, None, None], -1, 1)
    shade *= 0.72 + 0.28 * np.clip(depth * 6, 0, 1)  # rounded towards the rim
    color, texture_color = objects.color[:, None, None], objects.texture_color[:, None, None]
    color = color + texture(coarse, at)[..., None] * (texture_color - color)
    offset = max(1, size // 32)
    distance = np.minimum(np.arange(side), side - 1 - np.arange(side))  # from the border, where the shadow fades out
    fade = np.clip(distance / (0.12 * side), 0, 1).astype(np.float32)
    shadow = np.roll(np.clip(0.6 + depth * 2.5, 0, 1), (offset, offset), (1, 2)) * (fade[:, None] * fade)
    transparency = (1 - 0.35 * shadow) * (1 - cover)
    return transparency[..., None], color * (shade * cover)[..., None]


def _apply_camera(canvas: Array, scene: Scene, generators: list[np.random.Generator]) -> NDArray[np.uint8]:
    """Return the images after blur, contrast, vignette, gain and noise [N, H, W, 3]."""
    size = canvas.shape[1]
    canvas = _blur(canvas, scene.blur, passes=max(1, size // 48))
    canvas = (canvas - 0.5) * scene.contrast[:, None, None, None] + 0.5
    squares = (_pixel_centers(size) - 0.5) ** 2
    canvas *= (1 - scene.vignette[:, None, None] * (squares[:, None] + squares[None, :]))[..., None]
    canvas *= scene.gain[:, None, None]
    noise = np.stack([g.standard_normal((size, size, 3), np.float32) for g in generators])
    canvas += noise * scene.noise[:, None, None, None]
    return np.clip(canvas * 255 + 0.5, 0, 255).astype(np.uint8)


def _blur(canvas: Array, blur: Array, passes: int) -> Array:
    """Average each pixel with its two neighbors along both axes, several times."""
    weight = (0.33 * blur)[:, None, None, None]
    for _ in range(passes):
        for axis in (1, 2):
            padded = np.moveaxis(np.pad(canvas, [(int(a == axis),) * 2 for a in range(4)], mode="edge"), axis, 0)
            neighbors = np.moveaxis(padded[2:] + padded[:-2], 0, axis)
            canvas = canvas + weight * (neighbors - 2 * canvas)
    return canvas


def _pixel_centers(size: int) -> Array:
    """Return the centers of the pixels along one side, in 0..1."""
    return ((np.arange(size) + 0.5) / size).astype(np.float32)
