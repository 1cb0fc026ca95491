"""FLICKR-AES: images rated 1 to 5 by workers (Ren et al., 2017), with FedPer's filters (arXiv:1912.00818)."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels
from manyeyes.core.rng import derive_key
from manyeyes.data.manifest import Files, Manifest, files_by_name, keeps_synthetic_mark, write_synthetic_marker
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic, write_images
from manyeyes.data.tables import csv_rows

PAGE = "https://github.com/alanspike/personalizedImageAesthetics"  # links to a drive: no direct download
LICENSE = "images under Creative Commons licenses of their owners; ratings for research"
RATINGS, ARCHIVE, FOLDER = "FLICKR-AES_image_labeled_by_each_worker.csv", "FLICKR-AES-001.zip", "40K"
COLUMNS, SCORES = ("worker", "imagePair", "score"), ("1", "2", "3", "4", "5")


@keeps_synthetic_mark
def read_manifest(
    raw: Path, *, raters: int = 30, seed: int = 0, min_ratings: int = 60, max_ratings: int = 290, min_per_score: int = 4
) -> Manifest:
    """Return the ratings of some of the raters who gave each score often enough, a fifth of each rater's for testing.

    Which raters are chosen and which ratings are for testing depends on the ratings and the seed, not on which image
    files exist.
    """
    rater, image, score, duplicates = _read_ratings(raw)
    names, rater_index = np.unique(rater, return_inverse=True)
    counts = np.bincount(rater_index * 5 + score, minlength=5 * len(names)).reshape(-1, 5)
    total = counts.sum(1)
    eligible = names[(total >= min_ratings) & (total <= max_ratings) & (counts >= min_per_score).all(1)]
    if not 1 <= raters <= len(eligible):
        fix = f"set raters to 1 to {len(eligible)}" if len(eligible) else "lower min_ratings or min_per_score"
        filters = f"{min_ratings} to {max_ratings} ratings with {min_per_score} or more of each score"
        raise ValueError(f"raters is {raters}, and {len(eligible)} of {len(names)} raters have {filters}: {fix}")
    chosen = sorted(eligible.tolist(), key=lambda name: derive_key(seed, f"flickr-aes/worker/{name}"))[:raters]
    is_chosen = np.isin(rater, chosen)
    rater, image, score = rater[is_chosen], image[is_chosen], score[is_chosen]
    split = _split(rater, image, score, seed)

    files = files_by_name(raw)
    has_image = np.array([name in files for name in image])
    if not has_image.any():
        raise ValueError(f"None of the rated images is below {raw}: extract {ARCHIVE} there")
    used, index = np.unique(image[has_image], return_inverse=True)
    num_raters = {"all": len(names), "pass the filters": len(eligible), "chosen": raters, "seed": seed}
    manifest = Manifest(
        dataset="flickr_aes",
        source=Files(raw, [files[name] for name in used.tolist()]),
        image=index,
        users=rater[has_image],
        split=split[has_image],
        labels={"rating": SingleLabels(score[has_image], SCORES)},
        columns={"image_id": image[has_image]},
        notes={"source": PAGE, "license": LICENSE, "raters": num_raters},
        num_missing=int((~has_image).sum()),
    )
    missing = np.unique(image[~has_image])
    return manifest.add_notes({"duplicate ratings, left out": duplicates, "images without a file, left out": missing})


def _read_ratings(raw: Path) -> tuple[NDArray[np.str_], NDArray[np.str_], Ints, list[str]]:
    """Return the rater, image and score (from 0) of each rating, and the images that a rater rated again."""
    path = next(iter(sorted(raw.rglob(RATINGS))), None)
    if path is None:
        raise ValueError(f"{RATINGS} is not below {raw}: download it from {PAGE}")
    ratings: dict[tuple[str, str], int] = {}
    duplicates = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for line, cells in csv_rows(path, file, COLUMNS):
            rater, image, score = (cells[column] for column in COLUMNS)
            if not rater or not image or score not in SCORES:
                raise ValueError(f"{line} is {','.join(cells.values())!r}: give worker, image and a score of 1 to 5")
            if (rater, image) in ratings:
                duplicates.append(image)
            ratings.setdefault((rater, image), int(score) - 1)
    if not ratings:
        raise ValueError(f"{path} contains no ratings: download it again")
    raters, images = zip(*ratings, strict=True)
    return np.array(raters), np.array(images), np.array(list(ratings.values())), duplicates


def _split(rater: NDArray[np.str_], image: NDArray[np.str_], score: Ints, seed: int) -> NDArray[np.str_]:
    """Return a random fifth of the ratings with one score by one rater as test, at least one of two or more."""
    keys = [derive_key(seed, f"flickr-aes/split/{who}/{what}") for who, what in zip(rater, image, strict=True)]
    strata: dict[tuple[Any, Any], list[int]] = {}
    for example in sorted(range(len(score)), key=keys.__getitem__):
        strata.setdefault((rater[example], score[example]), []).append(example)
    split = np.full(len(score), "train")
    for examples in strata.values():
        nearest = (len(examples) + 2) // 5
        split[examples[: max(nearest, 1 if len(examples) > 1 else 0)]] = "test"
    return split


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images as FLICKR-AES: every user is a rater of all own images and a tenth of the next user's.

    Both users rate a shared image alike, as most images of FLICKR-AES have several ratings. FedPer's filters want about
    `images_per_user=120`.
    """
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    ratings = np.asarray(population.task("rating").labels.targets(np.arange(len(population)))) + 1
    names = [f"flickr_{name}.jpg" for name in np.asarray(population.columns["image_id"])]
    write_images(population, (raw / FOLDER / name for name in names))
    lines = ["worker, imagePair, score"]
    num_users = len(population.user_ids)
    for user in range(num_users):
        shared = population.examples((user + 1) % num_users) if num_users > 1 else population.examples(user)[:0]
        for example in (*population.examples(user), *shared[: len(shared) // 10]):
            lines.append(f"worker{user:04d}, {names[example]}, {ratings[example]}")
    (raw / RATINGS).write_text("\n".join(lines) + "\n")
