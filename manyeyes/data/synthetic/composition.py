"""Scene: how one user of the procedural world composes, lights and rates photographs of given things."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.rng import make_rng
from manyeyes.data.synthetic.renderer import RenderedObjects, Scene
from manyeyes.data.synthetic.shapes import Array, Ints

# What people like in exposure, contrast, composition, sharpness and colour; about brightness they do not agree.
SHARED_PREFERENCE = np.array([0.7, 0.5, 0.7, 0.5, 0.3, 0.0])
PERSONAL_PREFERENCE = 0.5  # spread of a user's own weights around the agreed ones
RATING_STEPS = (-1.5, -0.5, 0.4, 1.3)


@dataclass(frozen=True, eq=False)
class Objects:
    """What a user's photographs show, one row a thing, a photograph's rows together."""

    photo: Ints
    coarse: Ints
    look: Array  # [O, 4]
    main: NDArray[np.bool_]  # true once a photograph


def compose(seed: int, user: int, latitude: float, things: Objects) -> tuple[Scene, RenderedObjects, Ints]:
    """The photographs a user takes of these things, and the user's rating of each from 0 to 4."""
    g = make_rng(seed, "scene", 0, user)
    n, o = int(things.main.sum()), len(things.photo)

    # The camera, and the user's way of using it.
    warmth, tint, exposure_bias, contrast_bias, light_bias = g.normal(size=5)
    palette, haze, noisy, vignette = g.random(4)

    # Each photograph.
    hour, exposure, contrast, jitter = g.normal(size=(4, n))
    brightness = np.clip(0.56 + 0.04 * light_bias + 0.11 * hour, 0.28, 0.85)
    hue_sky = np.where(g.random(n) < 0.4, 0.58 + 0.04 * g.normal(size=n), _near(palette, g.random(n)))
    land = 0.12 + 0.2 * np.cos(np.radians(latitude)) ** 2  # from sand to green
    hue_ground = np.where(g.random(n) < 0.4, land + 0.05 * g.normal(size=n), _near(palette, g.random(n)))
    saturation = np.clip(0.32 + 0.14 * g.normal(size=n), 0.05, 0.75)
    ratio = np.exp(0.22 * g.normal(size=n))
    sky, ground = brightness * np.sqrt(ratio), brightness / np.sqrt(ratio)
    beam = g.uniform(0, 2 * np.pi, n)
    exposure = 0.05 + 0.14 * exposure_bias + 0.1 * exposure
    contrast = 0.95 + 0.09 * contrast_bias + 0.09 * contrast
    blur = np.clip(0.4 * haze + 0.2 * np.abs(jitter), 0, 1)
    gain = np.exp(exposure)[:, None] * (1 + np.array([0.08, 0, -0.08]) * warmth + np.array([0, 0.03, 0]) * tint)
    scene = Scene(
        user=np.full(n, user),
        number=np.arange(n),
        sky=colours(hue_sky, saturation, sky),
        ground=colours(hue_ground, saturation * 0.9, ground),
        horizon=_floats(g.uniform(0.25, 0.9, n)),
        relief=_floats(g.uniform(0.04, 0.11, n)),
        light=_floats(np.stack([np.cos(beam), np.sin(beam)], 1)),
        gain=_floats(np.maximum(gain, 0.2)),
        contrast=_floats(np.clip(contrast, 0.5, 1.5)),
        vignette=_floats(np.full(n, 0.9 * vignette)),
        blur=_floats(blur),
        noise=_floats((0.01 + 0.04 * noisy**2) * np.exp(0.3 * g.normal(size=n))),
    )

    # Each thing: the main one large, the others small and beside it.
    crowd = np.bincount(things.photo, minlength=n)[things.photo]
    radius = np.where(things.main, g.uniform(0.31, 0.43, o), g.uniform(0.09, 0.17, o) / np.maximum(1, crowd / 6) ** 0.5)
    centre = 0.5 + np.clip(0.07 * g.normal(size=(n, 2)), -0.15, 0.15)
    main_radius = np.zeros(n)
    main_radius[things.photo[things.main]] = radius[things.main]
    place = _beside(g.uniform(0.08, 0.92, (o, 5, 2)), centre[things.photo], main_radius[things.photo] + radius)
    place[things.main] = centre[things.photo[things.main]]
    behind = 0.5 * (sky + ground)[things.photo]
    body_value, trim_value = _values(behind, g.random((3, o)))
    hue = np.where(g.random(o) < 0.3, _near(palette, g.random(o)), g.random(o))
    trim_hue = hue + np.where(g.random(o) < 0.5, 0.06, 0.5) * g.normal(size=o)
    vivid = np.clip(0.38 + 0.18 * g.normal(size=o), 0.05, 0.95)
    depth = np.where(things.main, 0.6, g.random(o))
    objects = RenderedObjects(
        photo=things.photo,
        coarse=things.coarse,
        look=_floats(things.look + 0.05 * g.normal(size=(o, 4))),
        x=_floats(place[:, 0]),
        y=_floats(place[:, 1]),
        radius=_floats(radius),
        stretch=_floats(np.exp(0.1 * np.clip(g.normal(size=o), -2, 2))),
        turn=_floats(0.2 * g.normal(size=o)),
        body=colours(hue, vivid, body_value),
        trim=colours(trim_hue, vivid * 0.8, trim_value),
    ).take(np.lexsort([depth, things.photo]))

    # What the user thinks of them.
    light = (np.log(brightness / 0.56) + exposure) / 0.28
    offset = np.abs(np.abs(centre - 0.5) - 1 / 6).sum(1)  # from the nearest crossing of the thirds
    merits = [1 - 1.25 * np.abs(light), (contrast - 0.95) / 0.13, (0.23 - offset) / 0.07, (0.36 - blur) / 0.17]
    qualities = np.stack([*merits, (saturation - 0.32) / 0.14, light], 1)
    score = (
        qualities @ (SHARED_PREFERENCE + PERSONAL_PREFERENCE * g.normal(size=6))
        + 0.3 * g.normal()
        + 0.25 * g.normal(size=n)
    )
    return scene, objects, np.searchsorted(RATING_STEPS, score)


def colours(hue: NDArray[np.float64], saturation: NDArray[np.float64], value: NDArray[np.float64]) -> Array:
    """HSV (hue in turns) as RGB [N, 3]."""
    k = (np.array([5.0, 3.0, 1.0]) + 6 * hue[:, None]) % 6
    return _floats(value[:, None] * (1 - saturation[:, None] * np.clip(np.minimum(k, 4 - k), 0, 1)))


def _near(hue: float, draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Hues from all around the wheel, denser near one of them."""
    return hue + 4 * (draws - 0.5) ** 3


def _beside(
    candidates: NDArray[np.float64], centre: NDArray[np.float64], room: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of several places [O, K, 2], the first that is clear of the main thing, else the farthest from it [O, 2]."""
    distance = np.sqrt(((candidates - centre[:, None]) ** 2).sum(2))
    best = np.argmax(np.minimum(distance, 0.9 * room[:, None]), 1)
    return candidates[np.arange(len(candidates)), best]


def _values(behind: NDArray[np.float64], draws: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How light a thing and its texture are: either may be lighter or darker than what is behind."""
    side = np.where(draws[0] < np.clip(2 - 2 * behind, 0.2, 0.9), 1, -1)
    body = behind + side * (0.2 + 0.25 * draws[1])
    trim = body - side * (0.35 + 0.25 * draws[2])
    return np.clip(body, 0.06, 1), np.clip(trim, 0.06, 1)


def _floats(x: NDArray[np.float64]) -> Array:
    return x.astype(np.float32)
