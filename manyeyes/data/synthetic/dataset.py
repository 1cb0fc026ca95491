"""World: a population of procedural photographs, for tests and demonstrations that download nothing."""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data.clean_spawn import CleanSpawnContext
from manyeyes.data.synthetic.composition import compose
from manyeyes.data.synthetic.renderer import RenderedObjects, Scene, paint
from manyeyes.data.synthetic.shapes import MOST_CLASSES
from manyeyes.data.synthetic.users import Ints, UserImages, geography, sizes, taxonomy, user_images


@dataclass(frozen=True)
class SyntheticImages:
    """What a world is made of; equal worlds have equal pixels."""

    users: int = 1000
    size: int = 64  # pixels a side, 32 to 256
    seed: int = 0
    coarse: int = 17  # coarse classes
    fine: int = 1628  # fine classes, each belonging to one coarse class
    alpha: float = (
        3.0  # concentration of users' tastes around their region's mix; the smaller, the fewer their subjects
    )
    images_per_user: int = 0  # photos a user; 0: heavy-tailed as in FLAIR
    class_imbalance: float = 1.0  # how long-tailed the classes are; 1: as in FLAIR, 0: all equally common
    split: str = (
        "users"  # users: each wholly in train, val or test (80/10/10); per_user: each has train and test (83/17)
    )

    def __post_init__(self) -> None:
        ranges: dict[str, tuple[float, float, float]] = {
            "users": (self.users, 1, 1_000_000),
            "size": (self.size, 32, 256),
            "coarse": (self.coarse, 2, MOST_CLASSES),
            "fine": (self.fine, self.coarse, 100_000),
            "photos": (self.images_per_user, 0, 100_000),
            "taste": (self.alpha, 1e-3, 1e9),
            "tail": (self.class_imbalance, 0, 3),
        }
        for name, (value, low, high) in ranges.items():
            if not low <= value <= high:
                raise ValueError(f"a world's {name} is {value}: give a number from {low:g} to {high:g}")
        if self.split not in ("users", "per_user"):
            raise ValueError(f"a world's split is {self.split!r}: give 'users' or 'per_user'")


def make_synthetic(world: SyntheticImages, processes: int | None = None) -> Population:
    """Take the world's photographs; by default with one process a core, or with one where the world is small."""
    counts = user_sizes(world)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    images = np.empty((int(offsets[-1]), world.size, world.size, 3), np.uint8)
    parts = _parts(offsets, most=max(64, 2**23 // world.size**2))
    if processes is None:
        processes = 1 if images.nbytes < 2**24 else os.cpu_count() or 1
    if processes < 1:
        raise ValueError(f"processes is {processes}: give at least 1, or None for one a core")
    jobs = [(world, counts[first:last], first) for first, last in parts]
    albums: list[UserImages] = []
    ratings: list[Ints] = []
    with ProcessPoolExecutor(processes, CleanSpawnContext()) as pool:  # starts none before it is used
        done = map(photograph, jobs) if min(processes, len(jobs)) == 1 else pool.map(photograph, jobs)
        for (first, last), (some, rated, pixels) in zip(parts, done, strict=True):
            images[offsets[first] : offsets[last]] = pixels
            albums += some
            ratings.append(rated)
    classes = taxonomy(world.coarse, world.fine, world.class_imbalance)
    single = SingleLabels(np.concatenate([a.main for a in albums]), classes.coarse)
    photo = np.concatenate([a.photo + start for a, start in zip(albums, offsets[:-1], strict=True)])
    thing = np.concatenate([a.thing for a in albums])
    place = np.concatenate([a.place for a in albums])
    return Population.from_arrays(
        images,
        single,
        np.repeat(np.arange(world.users), counts),
        single=single,
        coarse=_multi(photo, classes.parent[thing], len(images), classes.coarse),
        fine=_multi(photo, thing, len(images), classes.fine),
        rating=SingleLabels(np.concatenate(ratings), ("1", "2", "3", "4", "5")),
        latitude=place[:, 0],
        longitude=place[:, 1],
        image_id=np.array([f"{user:06d}_{k:05d}" for user, count in enumerate(counts) for k in range(count)]),
        split=splits(world, counts),
    )


def user_sizes(world: SyntheticImages) -> Ints:
    """How many photos each user holds."""
    return np.full(world.users, world.images_per_user) if world.images_per_user else sizes(world.users, world.seed)


def splits(world: SyntheticImages, counts: Ints) -> NDArray[np.str_]:
    """The split of each photograph."""
    g = make_rng(world.seed, "splits")
    if world.split == "per_user":
        # Of a user's photos in random order the 2nd, 8th, 14th, ... are for testing: one in six, never a single one.
        order = [g.permutation(count) for count in counts]
        return np.where(np.concatenate(order) % 6 == 1, "test", "train")
    # Of every ten users of like size one is for validation and one for testing, so that no split has all large ones.
    tens = g.permuted(np.tile(np.arange(10), (-(-world.users // 10), 1)), axis=1).ravel()[: world.users]
    of_user = np.empty(world.users, "U5")
    of_user[np.argsort(-counts, kind="stable")] = np.array(["val", "test"] + ["train"] * 8)[tens]
    return np.repeat(of_user, counts)


def photograph(job: tuple[SyntheticImages, Ints, int]) -> tuple[list[UserImages], Ints, NDArray[np.uint8]]:
    """The albums, ratings and pixels of some consecutive users, given their numbers of photos and the first of them."""
    world, counts, start = job
    classes = taxonomy(world.coarse, world.fine, world.class_imbalance)
    globe = geography(world.seed, classes.common)
    albums, scenes, objects, ratings = [], [], [], []
    for user, count in enumerate(counts, start):
        taken = user_images(world.seed, user, int(count), world.alpha, classes, globe)
        scene, things, rating = compose(world.seed, user, taken.place[0, 0], taken.things(classes))
        albums.append(taken)
        scenes.append(scene)
        objects.append(things)
        ratings.append(rating)
    pixels = paint(Scene.join(scenes), RenderedObjects.join(objects, counts), world.size, world.seed)
    return albums, np.concatenate(ratings), pixels


def _multi(photo: Ints, labels: Ints, photos: int, classes: tuple[str, ...]) -> MultiLabels:
    """Labels of photographs, each once, as compressed rows."""
    photo, labels = np.divmod(np.unique(photo * len(classes) + labels), len(classes))
    return MultiLabels(np.searchsorted(photo, np.arange(photos + 1)), labels, classes)


def _parts(offsets: Ints, most: int) -> list[tuple[int, int]]:
    """Consecutive users in parts (first, last + 1) of at most so many photos, or of one user who holds more."""
    parts, first = [], 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        parts.append((first, max(first + 1, last)))
        first = parts[-1][1]
    return parts
