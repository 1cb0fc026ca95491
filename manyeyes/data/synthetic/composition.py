"""The composition of a user's images: position, light, camera and colors of given objects, and the user's ratings."""

import numpy as np

from manyeyes.core.population import Ints
from manyeyes.core.rng import make_rng
from manyeyes.data.synthetic.renderer import RenderedObjects, Scene, select
from manyeyes.data.synthetic.shapes import Array, Doubles
from manyeyes.data.synthetic.users import Taxonomy, UserImages

# Average weights of exposure, contrast, composition, sharpness, color and brightness in a rating.
SHARED_PREFERENCE = np.array([0.7, 0.5, 0.7, 0.5, 0.3, 0.0])
PERSONAL_PREFERENCE_STD = 0.5  # of a user's own weights around the average
RATING_THRESHOLDS = (-1.5, -0.5, 0.4, 1.3)


def compose(seed: int, user: int, contents: UserImages, classes: Taxonomy) -> tuple[Scene, RenderedObjects, Ints]:
    """Return the scenes and objects of a user's images, and the user's rating of each from 0 to 4."""
    g = make_rng(seed, "scene", 0, user)
    image, main = contents.image, contents.is_main
    n, o = len(contents.main_class), len(image)

    # The user's camera and habits.
    warmth, tint, exposure_bias, contrast_bias, light_bias = g.normal(size=5)
    palette, haze, noise_level, vignette = g.random(4)

    # Each image.
    hour, exposure, contrast, jitter = g.normal(size=(4, n))
    brightness = np.clip(0.56 + 0.04 * light_bias + 0.11 * hour, 0.28, 0.85)
    sky_hue = np.where(g.random(n) < 0.4, 0.58 + 0.04 * g.normal(size=n), _hues_near(palette, g.random(n)))
    land = 0.12 + 0.2 * np.cos(np.radians(contents.coordinates[0, 0])) ** 2  # from sand to green
    ground_hue = np.where(g.random(n) < 0.4, land + 0.05 * g.normal(size=n), _hues_near(palette, g.random(n)))
    saturation = np.clip(0.32 + 0.14 * g.normal(size=n), 0.05, 0.75)
    ratio = np.exp(0.22 * g.normal(size=n))
    sky, ground = brightness * np.sqrt(ratio), brightness / np.sqrt(ratio)
    light_angle = g.uniform(0, 2 * np.pi, n)
    exposure = 0.05 + 0.14 * exposure_bias + 0.1 * exposure
    contrast = 0.95 + 0.09 * contrast_bias + 0.09 * contrast
    blur = np.clip(0.4 * haze + 0.2 * np.abs(jitter), 0, 1)
    gain = np.exp(exposure)[:, None] * (1 + np.array([0.08, 0, -0.08]) * warmth + np.array([0, 0.03, 0]) * tint)
    scene = Scene(
        user=np.full(n, user),
        number=np.arange(n),
        sky=_to_rgb(sky_hue, saturation, sky),
        ground=_to_rgb(ground_hue, saturation * 0.9, ground),
        horizon=_to_float32(g.uniform(0.25, 0.9, n)),
        relief=_to_float32(g.uniform(0.04, 0.11, n)),
        light=_to_float32(np.stack([np.cos(light_angle), np.sin(light_angle)], 1)),
        gain=_to_float32(np.maximum(gain, 0.2)),
        contrast=_to_float32(np.clip(contrast, 0.5, 1.5)),
        vignette=_to_float32(np.full(n, 0.9 * vignette)),
        blur=_to_float32(blur),
        noise=_to_float32((0.01 + 0.04 * noise_level**2) * np.exp(0.3 * g.normal(size=n))),
    )

    # Each object: the main one large, the others small and away from it.
    num_objects = np.bincount(image, minlength=n)[image]
    radius = np.where(main, g.uniform(0.31, 0.43, o), g.uniform(0.09, 0.17, o) / np.maximum(1, num_objects / 6) ** 0.5)
    center = 0.5 + np.clip(0.07 * g.normal(size=(n, 2)), -0.15, 0.15)
    main_radius = np.zeros(n)
    main_radius[image[main]] = radius[main]
    candidates = g.uniform(0.08, 0.92, (o, 5, 2))
    distance = np.sqrt(((candidates - center[image][:, None]) ** 2).sum(2))
    # The first position that is clear of the main object, else the farthest.
    best = np.argmax(np.minimum(distance, 0.9 * (main_radius[image] + radius)[:, None]), 1)
    position = np.where(main[:, None], center[image], candidates[np.arange(o), best])
    background, uniforms = 0.5 * (sky + ground)[image], g.random((3, o))
    # An object is lighter or darker than the background, and its texture differs in the other direction.
    side = np.where(uniforms[0] < np.clip(2 - 2 * background, 0.2, 0.9), 1, -1)
    value = background + side * (0.2 + 0.25 * uniforms[1])
    texture_value = value - side * (0.35 + 0.25 * uniforms[2])
    hue = np.where(g.random(o) < 0.3, _hues_near(palette, g.random(o)), g.random(o))
    texture_hue = hue + np.where(g.random(o) < 0.5, 0.06, 0.5) * g.normal(size=o)
    vividness = np.clip(0.38 + 0.18 * g.normal(size=o), 0.05, 0.95)
    depth = np.where(main, 0.6, g.random(o))
    rendered = RenderedObjects(
        image=image,
        coarse=classes.parent[contents.fine_class],
        appearance=_to_float32(classes.appearance[contents.fine_class] + 0.05 * g.normal(size=(o, 4))),
        x=_to_float32(position[:, 0]),
        y=_to_float32(position[:, 1]),
        radius=_to_float32(radius),
        aspect_ratio=_to_float32(np.exp(0.1 * np.clip(g.normal(size=o), -2, 2))),
        rotation=_to_float32(0.2 * g.normal(size=o)),
        color=_to_rgb(hue, vividness, np.clip(value, 0.06, 1)),
        texture_color=_to_rgb(texture_hue, vividness * 0.8, np.clip(texture_value, 0.06, 1)),
    )
    rendered = select(rendered, np.lexsort([depth, image]))

    # The user's ratings.
    light = (np.log(brightness / 0.56) + exposure) / 0.28
    offset = np.abs(np.abs(center - 0.5) - 1 / 6).sum(1)  # from the nearest crossing of the thirds
    merits = [1 - 1.25 * np.abs(light), (contrast - 0.95) / 0.13, (0.23 - offset) / 0.07, (0.36 - blur) / 0.17]
    qualities = np.stack([*merits, (saturation - 0.32) / 0.14, light], 1)
    weights = SHARED_PREFERENCE + PERSONAL_PREFERENCE_STD * g.normal(size=6)
    score = qualities @ weights + 0.3 * g.normal() + 0.25 * g.normal(size=n)
    return scene, rendered, np.searchsorted(RATING_THRESHOLDS, score)


def _to_rgb(hue: Doubles, saturation: Doubles, value: Doubles) -> Array:
    """Convert HSV (hue in turns) to RGB [N, 3]."""
    k = (np.array([5.0, 3.0, 1.0]) + 6 * hue[:, None]) % 6
    return _to_float32(value[:, None] * (1 - saturation[:, None] * np.clip(np.minimum(k, 4 - k), 0, 1)))


def _hues_near(hue: float, uniforms: Doubles) -> Doubles:
    """Return hues from all around the color wheel, denser near one of them."""
    return hue + 4 * (uniforms - 0.5) ** 3


def _to_float32(x: Doubles) -> Array:
    return x.astype(np.float32)
