"""Inhabitants: who lives in the procedural world, where, and what they photograph; fitted to FLAIR's statistics."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.rng import make_rng
from manyeyes.data.synthetic.composition import Objects
from manyeyes.data.synthetic.shapes import looks

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]

# FLAIR's coarse classes and in how many of its images each occurs.
FLAIR = {
    "structure": 228923, "equipment": 225862, "material": 139733, "outdoor": 131322, "plant": 123363, "food": 110792,
    "animal": 68858, "liquid": 68677, "art": 37230, "interior_room": 32042, "light": 11326, "recreation": 5651,
    "celebration": 3769, "fire": 3011, "music": 2571, "games": 1093, "religion": 866,
}  # fmt: skip
# (share of users, how many photos they reach), fitted to FLAIR: quartiles 1 / 2 / 5, mean 8.35, sd 51.3, most 4,151.
SIZE_CURVE = (
    (1.0, 1.0), (0.62, 2.0), (0.25, 5.6), (0.05, 21.0), (0.023, 53.0), (0.002, 440.0), (0.0003, 1400.0),
    (0.00001, 4151.0),
)  # fmt: skip
MOST_OF_FEW = 30  # nobody holds more photos than half the number of users, or than this: no one user is the world
COARSE_LABELS = (0.17, 0.28, 0.295, 0.15, 0.065, 0.025, 0.01, 0.004, 0.001)  # share of images with 1, 2, ... of them
MORE_FINE = (0.53, 0.295, 0.13, 0.045)  # share of coarse labels with 0, 1, ... fine labels beyond the first
REGIONS, CITIES = 8, 60
REGIONAL = 60.0  # Dirichlet concentration of the regions' mixes of classes around the world's
LOCAL_FRACTION = 0.5  # share of a photo's further things that follow the user's taste; the rest follow the region's


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """The classes, what belongs to what, and how common each is."""

    coarse: tuple[str, ...]
    fine: tuple[str, ...]
    parent: Ints  # the coarse class of each fine class, in order
    common: Doubles  # share of each coarse class
    within: Doubles  # share of each fine class in its coarse class
    look: NDArray[np.float32]  # [fine, 4]


@dataclass(frozen=True, eq=False)
class Geography:
    """Where cities lie and what people photograph there."""

    city: Doubles  # [CITIES, 2] latitude and longitude
    region: Ints  # of each city
    crowd: Doubles  # share of users in each city
    mix: Doubles  # [REGIONS, coarse] share of each class


@dataclass(frozen=True, eq=False)
class UserImages:
    """What one user's photographs show and where they were taken."""

    place: Doubles  # [N, 2] latitude and longitude
    main: Ints  # coarse class of the main thing
    photo: Ints  # the photograph of each thing
    thing: Ints  # the fine class of each thing; in each photograph ascending and without repeats
    first: NDArray[np.bool_]  # whether the thing is the main one

    def things(self, classes: Taxonomy) -> Objects:
        return Objects(self.photo, classes.parent[self.thing], classes.look[self.thing], self.first)


def sizes(users: int, seed: int) -> Ints:
    """How many photos each user holds: FLAIR's curve at even, shuffled quantiles, so that the total never varies."""
    share, reach = np.log(np.array(SIZE_CURVE[::-1])).T
    quantile = (np.arange(users) + 0.5) / users
    curve = np.exp(np.interp(np.log(quantile), share, reach) + 1e-9).astype(np.int64)
    return make_rng(seed, "sizes").permutation(np.minimum(curve, max(MOST_OF_FEW, users // 2)))


def taxonomy(coarse: int, fine: int, tail: float) -> Taxonomy:
    """FLAIR's most common classes, or more with its curve stretched over them, and fine classes shared out to them."""
    rank = np.arange(coarse) * min(1, (len(FLAIR) - 1) / (coarse - 1))
    common = np.exp(tail * np.interp(rank, np.arange(len(FLAIR)), np.log(list(FLAIR.values()))))
    names = tuple(FLAIR)[:coarse] if coarse <= len(FLAIR) else tuple(f"class_{c:03d}" for c in range(coarse))
    room = np.cumsum(np.sqrt(common)) / np.sqrt(common).sum() * (fine - coarse)
    held = 1 + np.diff(np.round(room).astype(np.int64), prepend=0)
    parent = np.repeat(np.arange(coarse), held)
    place = np.concatenate([np.arange(h) for h in held])
    weight = (1.0 + place) ** -tail
    within = weight / np.bincount(parent, weight)[parent]
    labels = tuple(f"{names[c]}_{k:03d}" for c, k in zip(parent, place, strict=True))
    return Taxonomy(names, labels, parent, common / common.sum(), within, looks(place))


def geography(seed: int, common: Doubles) -> Geography:
    """Cities in regions, a few of them large, each region with its own mix of classes."""
    g = make_rng(seed, "geography")
    centre = np.stack([g.uniform(-40, 58, REGIONS), g.uniform(-180, 180, REGIONS)], 1)
    region = np.arange(CITIES) % REGIONS
    crowd = g.permutation(1 / (3.0 + np.arange(CITIES)))
    mix = g.dirichlet(REGIONAL * common, REGIONS)
    return Geography(centre[region] + g.normal(0, 7, (CITIES, 2)), region, crowd / crowd.sum(), mix)


def user_images(seed: int, user: int, photos: int, taste: float, classes: Taxonomy, globe: Geography) -> UserImages:
    """What a user photographs: mains by the user's own taste, further things also by the region's."""
    g = make_rng(seed, "album", 0, user)
    city = g.choice(CITIES, p=globe.crowd)
    home = globe.city[city] + g.normal(0, 0.15, 2)
    place = home + g.normal(0, 0.02, (photos, 2))
    place[:, 1] = (place[:, 1] + 180) % 360 - 180
    region = globe.mix[globe.region[city]]
    own = g.dirichlet(np.maximum(taste * region, 1e-9))

    main = g.choice(len(own), photos, p=own)
    further = np.log(np.maximum(LOCAL_FRACTION * own + (1 - LOCAL_FRACTION) * region, 1e-12))
    order = further + g.gumbel(size=(photos, len(own)))  # the highest k are a draw of k without replacement
    order[np.arange(photos), main] = np.inf
    number = 1 + g.choice(len(COARSE_LABELS), photos, p=COARSE_LABELS)
    photo, rank = np.nonzero(np.arange(len(own)) < number[:, None])
    coarse = np.argsort(-order, 1)[photo, rank]

    favourite = g.standard_gamma(taste * classes.within) + 1e-9 * classes.within
    favourite /= np.bincount(classes.parent, favourite)[classes.parent]
    first = _pick(favourite, classes.parent, coarse, g.random(len(coarse)))
    more = np.repeat(np.arange(len(coarse)), g.choice(len(MORE_FINE), len(coarse), p=MORE_FINE))
    others = _pick(classes.within, classes.parent, coarse[more], g.random(len(more)))
    count = len(classes.fine)
    keys = np.unique(np.concatenate([photo * count + first, photo[more] * count + others]))
    subject = np.arange(photos) * count + first[rank == 0]
    return UserImages(place, main, keys // count, keys % count, np.isin(keys, subject))


def _pick(share: Doubles, parent: Ints, coarse: Ints, draw: Doubles) -> Ints:
    """A fine class for each coarse class, by the fine classes' shares within it and a draw in 0..1."""
    total = np.cumsum(share)  # rises by 1 over each coarse class
    starts = np.searchsorted(parent, coarse)
    ends = np.searchsorted(parent, coarse, side="right") - 1
    return np.clip(np.searchsorted(total, coarse + draw, side="right"), starts, ends)
