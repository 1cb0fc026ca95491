"""Synthetic images: a population of procedural images, for tests and demonstrations without a download."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from manyeyes.core.population import SYNTHETIC, Ints, MultiLabels, Population, SingleLabels
from manyeyes.core.registry import (
    OPTIONS_ATTRIBUTE,
    Bounds,
    Option,
    check_options,
    check_value,
    checks_keywords,
    option,
    options_of,
    register,
)
from manyeyes.core.rng import make_rng
from manyeyes.data.clean_spawn import process_pool
from manyeyes.data.synthetic.composition import compose
from manyeyes.data.synthetic.renderer import concatenate, render
from manyeyes.data.synthetic.shapes import MAX_COARSE_CLASSES
from manyeyes.data.synthetic.users import UserImages, geography, lognormal_sizes, sizes, taxonomy, user_images


@checks_keywords
@dataclass(frozen=True)
class SyntheticImages:
    """The description of a synthetic population; equal descriptions give equal pixels."""

    users: int = option(1000, "number of users", minimum=1, maximum=1_000_000)
    size: int = option(64, "pixels per side, 32 to 256", minimum=32, maximum=256)
    seed: int = option(0, "seed of the images, their users and their split", minimum=0)
    coarse: int = option(17, "coarse classes", minimum=2, maximum=MAX_COARSE_CLASSES)
    fine: int = option(1628, "fine classes, each within a coarse one", minimum=2, maximum=100_000)
    alpha: float = option(3.0, "concentration of users' class mix: small is more skewed", minimum=1e-3, maximum=1e9)
    images_per_user: int = option(0, "images of each user; 0: heavy-tailed as in FLAIR", minimum=0, maximum=100_000)
    images_per_user_spread: float = option(
        0.0, "0: equal; else the standard deviation of the logarithm of images_per_user", minimum=0, maximum=3
    )
    class_imbalance: float = option(1.0, "1: class frequencies as in FLAIR, 0: equal", minimum=0, maximum=3)
    split: str = option(
        "users", "users: 80/10/10 % are in train/val/test; per_user: 83/17 % of each", choices=("users", "per_user")
    )

    def __post_init__(self) -> None:
        check_options(self, "data")
        if self.fine < self.coarse:
            raise ValueError(f"data.fine is {self.fine}: set it to at least data.coarse, {self.coarse}")


TASK = Option("task", str, "single", "what is predicted: single, coarse, fine or rating")


@register("dataset", "synthetic", size=32, coarse=10, fine=100, alpha=1.0)
def load_synthetic(task: str = TASK.default, **options: Any) -> Population:
    """Synthetic images."""
    return make_synthetic(SyntheticImages(**options)).task(task)


setattr(load_synthetic, OPTIONS_ATTRIBUTE, lambda: (*options_of(SyntheticImages), TASK))


def make_synthetic(description: SyntheticImages, processes: int | None = None) -> Population:
    """Render a synthetic population, by default with one process per core, or with one for few images."""
    counts = user_sizes(description)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    images = np.empty((int(offsets[-1]), description.size, description.size, 3), np.uint8)
    starts = np.arange(0, len(images), max(64, 2**23 // description.size**2))  # of about equal work
    ranges = list(pairwise(np.unique([*np.searchsorted(offsets, starts), description.users]).tolist()))
    check_value("processes", processes, int | None, Bounds(minimum=1))
    processes = processes or (1 if images.nbytes < 2**24 else os.cpu_count() or 1)
    jobs = [(description, counts[first:last], first) for first, last in ranges]
    users: list[UserImages] = []
    ratings: list[Ints] = []
    with process_pool(processes) as pool:  # starts none before it is used
        results = map(render_users, jobs) if min(processes, len(jobs)) == 1 else pool.map(render_users, jobs)
        for (first, last), (range_users, range_ratings, pixels) in zip(ranges, results, strict=True):
            images[offsets[first] : offsets[last]] = pixels
            users += range_users
            ratings.append(range_ratings)
    classes = taxonomy(description.coarse, description.fine, description.class_imbalance)
    contents = concatenate([replace(u, image=u.image + start) for u, start in zip(users, offsets, strict=False)])
    single = SingleLabels(contents.main_class, classes.coarse)
    population = Population.from_arrays(
        images,
        single,
        np.repeat(np.arange(description.users), counts),
        single=single,
        coarse=MultiLabels.from_pairs(contents.image, classes.parent[contents.fine_class], len(images), classes.coarse),
        fine=MultiLabels.from_pairs(contents.image, contents.fine_class, len(images), classes.fine),
        rating=SingleLabels(np.concatenate(ratings), ("1", "2", "3", "4", "5")),
        latitude=contents.coordinates[:, 0],
        longitude=contents.coordinates[:, 1],
        image_id=np.array([f"{user:06d}_{k:05d}" for user, count in enumerate(counts) for k in range(count)]),
        split=splits(description, counts),
    )
    return replace(population, caveats=(SYNTHETIC,))


def user_sizes(description: SyntheticImages) -> Ints:
    if not description.images_per_user:
        return sizes(description.users, description.seed)
    return lognormal_sizes(
        description.users, description.images_per_user, description.images_per_user_spread, description.seed
    )


def splits(description: SyntheticImages, counts: Ints) -> NDArray[np.str_]:
    g = make_rng(description.seed, "splits")
    if description.split == "per_user":
        # Of a user's images in random order the 2nd, 8th, 14th, ... are for testing: one in six, never a single one.
        order = [g.permutation(count) for count in counts]
        return np.where(np.concatenate(order) % 6 == 1, "test", "train")
    # Of every ten users of similar size one is for validation and one for testing, so that every split has large ones.
    users = description.users
    rank = g.permuted(np.tile(np.arange(10), (-(-users // 10), 1)), axis=1).ravel()[:users]
    user_split = np.empty(users, "U5")
    user_split[np.argsort(-counts, kind="stable")] = np.array(["val", "test"] + ["train"] * 8)[rank]
    return np.repeat(user_split, counts)


def render_users(job: tuple[SyntheticImages, Ints, int]) -> tuple[list[UserImages], Ints, NDArray[np.uint8]]:
    """Return the contents, ratings and pixels of consecutive users, given their image counts and the first user."""
    description, counts, first_user = job
    classes = taxonomy(description.coarse, description.fine, description.class_imbalance)
    globe = geography(description.seed, classes.coarse_probabilities)
    users, scenes, objects, ratings = [], [], [], []
    starts = np.cumsum(counts) - counts
    for user, (count, start) in enumerate(zip(counts.tolist(), starts, strict=True), first_user):
        contents = user_images(description.seed, user, count, description.alpha, classes, globe)
        scene, user_objects, rating = compose(description.seed, user, contents, classes)
        users.append(contents)
        scenes.append(scene)
        objects.append(replace(user_objects, image=user_objects.image + start))
        ratings.append(rating)
    pixels = render(concatenate(scenes), concatenate(objects), description.size, description.seed)
    return users, np.concatenate(ratings), pixels


def write_images(population: Population, paths: Iterable[Path | None]) -> None:
    """Write the image of each example as a JPEG file; None leaves one out, as downloads do."""
    for example, path in enumerate(paths):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(simplejpeg.encode_jpeg(population.pixels(np.array([example]))[0], quality=95))
