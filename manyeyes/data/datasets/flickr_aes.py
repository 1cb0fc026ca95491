"""FLICKR-AES: photographs rated 1 to 5 by workers (Ren et al., 2017), with FedPer's filters (arXiv:1912.00818)."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels
from manyeyes.core.rng import derive_key
from manyeyes.data.datasets.flair import jpeg
from manyeyes.data.manifest import Files, Manifest, count_and_name
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

PAGE = "https://github.com/alanspike/personalizedImageAesthetics"  # links to a drive: no direct download
LICENCE = "photographs under Creative Commons licences of their owners; ratings for research"
RATINGS, ARCHIVE, FOLDER = "FLICKR-AES_image_labeled_by_each_worker.csv", "FLICKR-AES-001.zip", "40K"
SCORES = ("1", "2", "3", "4", "5")


def read_manifest(
    raw: Path, *, raters: int = 30, seed: int = 0, min_ratings: int = 60, max_ratings: int = 290, min_per_score: int = 4
) -> Manifest:
    """The ratings of some workers of those who gave enough of each score, a fifth of each worker's for testing.

    Who is chosen and what is for testing depends on the ratings and the seed, not on which images are there.
    """
    worker, image, score, again = _read(raw)
    names, who = np.unique(worker, return_inverse=True)
    given = np.bincount(who * 5 + score, minlength=5 * len(names)).reshape(-1, 5)
    total = given.sum(1)
    able = names[(total >= min_ratings) & (total <= max_ratings) & (given >= min_per_score).all(1)]
    if not 1 <= raters <= len(able):
        what = f"ask for 1 to {len(able)}" if len(able) else "lower least or least_per_score"
        raise ValueError(
            f"{raters} workers were asked for and {len(able)} of {len(names)} have {min_ratings} to {max_ratings} ratings "
            f"with {min_per_score} or more of each score: {what}"
        )
    chosen = sorted(able.tolist(), key=lambda name: derive_key(seed, f"flickr-aes/worker/{name}"))[:raters]
    of_chosen = np.isin(worker, chosen)
    worker, image, score = worker[of_chosen], image[of_chosen], score[of_chosen]
    split = _split(worker, image, score, seed)

    files = _files(raw)
    present = np.array([name in files for name in image])
    if not present.any():
        raise ValueError(f"none of the rated images is below {raw}: extract {ARCHIVE} there")
    used, index = np.unique(image[present], return_inverse=True)
    odd = {
        "ratings of an image by a worker who had rated it, left out": again,
        "images without a file, left out": np.unique(image[~present]),
    }
    return Manifest(
        dataset="flickr_aes",
        source=Files(raw, [files[name] for name in used.tolist()]),
        image=index,
        users=worker[present],
        split=split[present],
        labels={"rating": SingleLabels(score[present], SCORES)},
        columns={"image_id": image[present]},
        notes={
            "source": PAGE,
            "licence": LICENCE,
            "workers": {"all": len(names), "pass the filters": len(able), "chosen": raters, "seed": seed},
            **{what: count_and_name(which) for what, which in odd.items() if len(which)},
        },
    )


def _read(raw: Path) -> tuple[NDArray[np.str_], NDArray[np.str_], Ints, NDArray[Any]]:
    """Worker, image and score from 0 of every rating, and the images of ratings given again."""
    path = next(iter(sorted(raw.rglob(RATINGS))), None)
    if path is None:
        raise ValueError(f"{RATINGS} is not below {raw}: download it from {PAGE}")
    ratings: dict[tuple[str, str], int] = {}
    again = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        header = [name.strip() for name in next(lines, [])]
        if header != ["worker", "imagePair", "score"]:
            raise ValueError(f"{path} has columns {', '.join(header) or 'none'}: they must be worker, imagePair, score")
        for line in lines:
            if not line:
                continue
            worker, image, score = (field.strip() for field in (*line, "", "", "")[:3])
            if len(line) != 3 or not worker or not image or score not in SCORES:
                raise ValueError(
                    f"line {lines.line_num} of {path} is {','.join(line)!r}: give worker, image and a score of 1 to 5"
                )
            if (worker, image) in ratings:
                again.append(image)
            else:
                ratings[worker, image] = int(score) - 1
    if not ratings:
        raise ValueError(f"{path} holds no ratings: download it again")
    workers, images = zip(*ratings, strict=True)
    return np.array(workers), np.array(images), np.array(list(ratings.values())), np.array(again)


def _split(worker: NDArray[np.str_], image: NDArray[np.str_], score: Ints, seed: int) -> NDArray[np.str_]:
    """Of what a worker gave one score, the fifth that chance puts first is for testing; one at least of two or more."""
    chance_of = [derive_key(seed, f"flickr-aes/split/{who}/{what}") for who, what in zip(worker, image, strict=True)]
    strata: dict[tuple[str, int], list[int]] = {}
    for example in sorted(range(len(score)), key=chance_of.__getitem__):
        strata.setdefault((str(worker[example]), int(score[example])), []).append(example)
    split = np.full(len(score), "train")
    for examples in strata.values():
        nearest = (len(examples) + 2) // 5
        split[examples[: max(nearest, 1 if len(examples) > 1 else 0)]] = "test"
    return split


def _files(raw: Path) -> dict[str, str]:
    """Where each file is, by its name; of several with one name the first in order of path."""
    found: dict[str, str] = {}
    for folder, folders, names in os.walk(raw, followlinks=True):
        folders.sort()
        for name in names:
            found.setdefault(name, os.path.relpath(os.path.join(folder, name), raw))
    return found


def write_synthetic(world: SyntheticImages, raw: Path) -> None:
    """Write a procedural world as FLICKR-AES: every user is a worker who rates the own photographs.

    Each also rates a tenth of the next one's, and agrees: most images of FLICKR-AES have several ratings. FedPer's
    filters want `photos=120` or so in the world.
    """
    population = make_synthetic(world)
    rating = np.asarray(population.task("rating").labels.targets(np.arange(len(population)))) + 1
    names = [f"flickr_{name}.jpg" for name in np.asarray(population.columns["image_id"])]
    folder = raw / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for example, name in enumerate(names):
        (folder / name).write_bytes(jpeg(population, example))
    lines = ["worker, imagePair, score"]
    users = len(population.user_ids)
    for user in range(users):
        others = population.examples((user + 1) % users) if users > 1 else population.examples(user)[:0]
        for example in (*population.examples(user), *others[: len(others) // 10]):
            lines.append(f"worker{user:04d}, {names[example]}, {rating[example]}")
    (raw / RATINGS).write_text("\n".join(lines) + "\n")
