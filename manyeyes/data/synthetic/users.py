"""The users of the synthetic images: where they live and which classes they photograph; fitted to FLAIR."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints
from manyeyes.core.rng import make_rng
from manyeyes.data.partition import lognormal_weights
from manyeyes.data.synthetic.shapes import Array, Doubles, appearances

_FLAIR = tomllib.loads(files("manyeyes.data.synthetic").joinpath("flair.toml").read_text())
FLAIR_IMAGE_COUNTS: dict[str, int] = _FLAIR["image_counts"]  # the number of images that show each coarse class
MIN_SIZE_LIMIT = 30  # no user has more images than half the number of users, or than this if it is more
NUM_REGIONS, NUM_CITIES = 8, 60
REGION_CONCENTRATION = 60.0  # of the Dirichlet distribution of a region's class mix around the overall one
LOCAL_FRACTION = 0.5  # weight of the user's class mix for an image's smaller objects; the rest follow the region's


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """The classes: their hierarchy and how common each is."""

    coarse: tuple[str, ...]
    fine: tuple[str, ...]
    parent: Ints  # the coarse class of each fine class, in order
    coarse_probabilities: Doubles
    fine_probabilities: Doubles  # within their coarse class
    appearance: Array  # [fine, 4]


@dataclass(frozen=True, eq=False)
class Geography:
    """The cities, and the class mix of each."""

    coordinates: Doubles  # [cities, 2] latitude and longitude
    city_probabilities: Doubles
    class_mix: Doubles  # [cities, coarse], that of the city's region


@dataclass(frozen=True, eq=False)
class UserImages:
    """What one user's images show and where they were taken."""

    coordinates: Doubles  # [N, 2] latitude and longitude
    main_class: Ints  # coarse class of each image's main object
    image: Ints  # the image of each object
    fine_class: Ints  # of each object; in each image ascending and without repeats
    is_main: NDArray[np.bool_]  # of each object


def sizes(users: int, seed: int) -> Ints:
    """Return how many images each user has: FLAIR's curve at evenly spaced quantiles, so that all seeds agree in total."""
    fraction, size = np.log(np.array(_FLAIR["size_curve"][::-1])).T
    quantile = (np.arange(users) + 0.5) / users
    curve = np.exp(np.interp(np.log(quantile), fraction, size) + 1e-9).astype(np.int64)
    return make_rng(seed, "sizes").permutation(np.minimum(curve, max(MIN_SIZE_LIMIT, users // 2)))


def lognormal_sizes(users: int, mean: int, spread: float, seed: int) -> Ints:
    """Return the number of images of each user: of about this mean, with this standard deviation of the logarithm."""
    if not spread:
        return np.full(users, mean)
    return np.maximum(1, np.round(mean * users * lognormal_weights(users, spread, seed))).astype(np.int64)


def taxonomy(num_coarse: int, num_fine: int, class_imbalance: float) -> Taxonomy:
    """Return FLAIR's most common classes, or more that follow its curve, and the fine classes of each."""
    rank = np.arange(num_coarse) * min(1, (len(FLAIR_IMAGE_COUNTS) - 1) / (num_coarse - 1))
    log_counts = np.log(list(FLAIR_IMAGE_COUNTS.values()))
    weights = np.exp(class_imbalance * np.interp(rank, np.arange(len(log_counts)), log_counts))
    coarse = tuple(FLAIR_IMAGE_COUNTS)[:num_coarse]
    if len(coarse) < num_coarse:
        coarse = tuple(f"class_{c:03d}" for c in range(num_coarse))
    cumulative = np.cumsum(np.sqrt(weights)) / np.sqrt(weights).sum() * (num_fine - num_coarse)
    num_children = 1 + np.diff(np.round(cumulative).astype(np.int64), prepend=0)
    parent = np.repeat(np.arange(num_coarse), num_children)
    child_rank = np.concatenate([np.arange(count) for count in num_children])
    fine_weights = (1.0 + child_rank) ** -class_imbalance
    fine_probabilities = fine_weights / np.bincount(parent, fine_weights)[parent]
    fine = tuple(f"{coarse[c]}_{k:03d}" for c, k in zip(parent, child_rank, strict=True))
    return Taxonomy(coarse, fine, parent, weights / weights.sum(), fine_probabilities, appearances(child_rank))


def geography(seed: int, coarse_probabilities: Doubles) -> Geography:
    """Return cities in regions, a few of them large, each region with its own mix of classes."""
    g = make_rng(seed, "geography")
    centers = np.stack([g.uniform(-40, 58, NUM_REGIONS), g.uniform(-180, 180, NUM_REGIONS)], 1)
    region = np.arange(NUM_CITIES) % NUM_REGIONS
    city_weights = g.permutation(1 / (3.0 + np.arange(NUM_CITIES)))
    class_mix = g.dirichlet(REGION_CONCENTRATION * coarse_probabilities, NUM_REGIONS)
    coordinates = centers[region] + g.normal(0, 7, (NUM_CITIES, 2))
    return Geography(coordinates, city_weights / city_weights.sum(), class_mix[region])


def user_images(seed: int, user: int, count: int, alpha: float, classes: Taxonomy, globe: Geography) -> UserImages:
    """Draw a user's images: main objects from the user's class mix, smaller ones also from the region's."""
    g = make_rng(seed, "album", 0, user)
    city = g.choice(NUM_CITIES, p=globe.city_probabilities)
    home = globe.coordinates[city] + g.normal(0, 0.15, 2)
    coordinates = home + g.normal(0, 0.02, (count, 2))
    coordinates[:, 1] = (coordinates[:, 1] + 180) % 360 - 180
    region_mix = globe.class_mix[city]
    user_mix = g.dirichlet(np.maximum(alpha * region_mix, 1e-9))

    main_class = g.choice(len(user_mix), count, p=user_mix)
    log_mix = np.log(np.maximum(LOCAL_FRACTION * user_mix + (1 - LOCAL_FRACTION) * region_mix, 1e-12))
    scores = log_mix + g.gumbel(size=(count, len(user_mix)))  # the highest k are a draw of k without replacement
    scores[np.arange(count), main_class] = np.inf
    num_coarse = 1 + g.choice(len(_FLAIR["num_coarse"]), count, p=_FLAIR["num_coarse"])
    image, rank = np.nonzero(np.arange(len(user_mix)) < num_coarse[:, None])
    coarse = np.argsort(-scores, 1)[image, rank]

    preference = g.standard_gamma(alpha * classes.fine_probabilities) + 1e-9 * classes.fine_probabilities
    preference /= np.bincount(classes.parent, preference)[classes.parent]
    first = _draw_fine(preference, classes.parent, coarse, g.random(len(coarse)))
    num_extra = g.choice(len(_FLAIR["num_extra_fine"]), len(coarse), p=_FLAIR["num_extra_fine"])
    extra = np.repeat(np.arange(len(coarse)), num_extra)
    others = _draw_fine(classes.fine_probabilities, classes.parent, coarse[extra], g.random(len(extra)))
    num_fine = len(classes.fine)
    keys = np.unique(np.concatenate([image * num_fine + first, image[extra] * num_fine + others]))
    main_keys = np.arange(count) * num_fine + first[rank == 0]
    return UserImages(coordinates, main_class, *np.divmod(keys, num_fine), np.isin(keys, main_keys))


def _draw_fine(probabilities: Doubles, parent: Ints, coarse: Ints, uniforms: Doubles) -> Ints:
    """Draw a fine class for each coarse class, given the probabilities within it and uniform numbers in 0..1."""
    cumulative = np.cumsum(probabilities)  # increases by 1 over each coarse class
    first = np.searchsorted(parent, coarse)
    last = np.searchsorted(parent, coarse, side="right") - 1
    return np.clip(np.searchsorted(cumulative, coarse + uniforms, side="right"), first, last)
