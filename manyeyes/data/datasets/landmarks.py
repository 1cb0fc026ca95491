"""Landmarks-User-160k and gld23k: the released splits, or one made from GLD-v2-clean (Hsu et al. 2020, section 4.2)."""

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data.datasets import released_splits as released
from manyeyes.data.datasets.released_splits import Strings, find_file
from manyeyes.data.manifest import Manifest, check_choice, keeps_synthetic_mark, write_synthetic_marker
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic, write_images
from manyeyes.data.tables import read_columns, write_table

Mask = NDArray[np.bool_]
# The train and test files of each split.
SPLITS = {"160k": ("federated_train.csv", "test.csv"), "23k": ("mini_gld_train_split.csv", "mini_gld_test.csv")}
# GLD-v2's 500 archives extracted into `train`, or next to the tables; and images as TFF and FedML leave them.
LAYOUTS = ("train/{0}/{1}/{2}/{id}.jpg", "{0}/{1}/{2}/{id}.jpg", "images/{id}.jpg")

PAGE = "https://github.com/cvdfoundation/google-landmark"
LICENSE = "annotations CC BY 4.0; each image has its own, a CC BY without ND"


@dataclass(frozen=True)
class Filters:
    """The landmarks and users that the split contains, and the size of its test set; by default as in the paper."""

    min_images_per_landmark: int = 30
    min_users_per_landmark: int = 10
    min_images_per_user: int = 30
    min_landmarks_per_user: int = 5
    max_test_images_per_landmark: int = 10


PAPER = Filters()


@keeps_synthetic_mark
def read_manifest(
    raw: Path,
    *,
    split: str = "160k",
    splits: Path | None = None,
    construct: bool = False,
    seed: int = 0,
    filters: Filters = PAPER,
) -> Manifest:
    """Return one split, from its CSVs in `splits` (or `raw`) or made from GLD-v2-clean; images are below `raw`."""
    check_choice("split of Landmarks", split, SPLITS)
    if construct and split != "160k":
        raise ValueError("construct works with split=160k only: how gld23k was chosen is not published")
    if construct:
        manifest = make_split(raw, seed, filters)
    else:
        train, test = SPLITS[split]
        path = find_file(splits or raw, train)
        manifest = released.read_released("landmarks", path, path.with_name(test))
    notes = {"split": split, "constructed": construct} | ({"seed": seed} if construct else {})
    paths = [_path(raw, image_id) for image_id in manifest.columns["image_id"].tolist()]
    return released.locate_images(manifest, raw, paths, source=PAGE, license=LICENSE, **notes)


def make_split(raw: Path, seed: int, filters: Filters = PAPER) -> Manifest:
    """Return the largest set of images that passes the filters, and a test set by other authors."""
    clean = read_columns(find_file(raw, "train_clean.csv"), ("landmark_id", "images"))
    attribution = read_columns(find_file(raw, "train_attribution.csv"), ("id", "author"))
    images = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(clean["images"])).combine_chunks()
    image_ids = images.flatten()
    names, landmarks = _encode(pc.take(clean["landmark_id"], pc.list_parent_indices(images)))
    authors, users = _encode(pc.take(attribution["author"], pc.index_in(image_ids, value_set=attribution["id"])))

    has_author = np.array([author.strip() != "" for author in authors], bool)[users]
    is_train = filter_images(landmarks, users, filters, has_author)
    if not is_train.any():
        raise ValueError(f"No landmark and user in {raw} pass the filters; the published files have 2,028 and 1,262")
    train = np.flatnonzero(is_train)
    test = _test_images(landmarks, users, train, has_author, filters, make_rng(seed, "landmarks"))
    chosen = np.concatenate([train, test])
    classes = np.array(names)[landmarks[chosen]]
    labels = released.numbered_labels(classes, classes, raw)
    columns = {"image_id": released.as_strings(image_ids.take(pa.array(chosen)))}
    return released.unlocated_manifest("landmarks", np.array(authors)[users[train]], labels, columns)


def _test_images(
    landmarks: Ints, users: Ints, train: Ints, mask: NDArray[np.bool_], filters: Filters, rng: np.random.Generator
) -> Ints:
    """Return random images of the training images' landmarks by users who train nothing."""
    candidates = np.flatnonzero(mask & np.isin(landmarks, landmarks[train]) & ~np.isin(users, users[train]))
    return candidates[released.sample_per_class(landmarks[candidates], filters.max_test_images_per_landmark, rng)]


def filter_images(landmarks: Ints, users: Ints, filters: Filters, mask: Mask) -> Mask:
    """Return which images of `mask` stay when landmarks and users with too few are dropped until all have enough.

    The paper asks all four conditions of the result, and one pass would leave users who lost a landmark. What is left
    is the one largest set that satisfies them, whatever is dropped first.
    """
    mask, before = mask.copy(), -1
    while mask.sum() != before:
        before = mask.sum()
        mask &= _has_enough(landmarks, users, mask, filters.min_images_per_landmark, filters.min_users_per_landmark)
        mask &= _has_enough(users, landmarks, mask, filters.min_images_per_user, filters.min_landmarks_per_user)
    return mask


def _has_enough(groups: Ints, others: Ints, mask: Mask, min_images: int, min_others: int) -> Mask:
    """Return whether the group of each image has `min_images` of `mask`, of `min_others` different others."""
    num_groups, num_others = int(groups.max(initial=0)) + 1, int(others.max(initial=0)) + 1
    num_images = np.bincount(groups[mask], minlength=num_groups)
    pairs = np.unique(groups[mask] * num_others + others[mask])
    num_different = np.bincount(pairs // num_others, minlength=num_groups)
    return ((num_images >= min_images) & (num_different >= min_others))[groups]


def _encode(column: pa.ChunkedArray) -> tuple[list[str], Ints]:
    """Return the different values of a text column, and the index of each entry's among them; "" for a missing one."""
    encoded = column.combine_chunks().fill_null("").dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)


def _path(raw: Path, image_id: str) -> str:
    """Return the path of an image below the raw folder, or "" if it does not exist."""
    if len(image_id) < 3 or not image_id.isalnum() or not image_id.isascii():
        problem = f"has image id {image_id[:100]!r}, which is not one of GLD-v2's 16 hexadecimal digits"
        raise ValueError(f"A table of Landmarks for {raw} {problem}: give the right CSV")
    paths = (layout.format(*image_id[:3], id=image_id) for layout in LAYOUTS)
    return next((path for path in paths if (raw / path).is_file()), "")


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images as GLD-v2-clean with its released splits; a tenth of the images is missing."""
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    assert isinstance(population.labels, SingleLabels), "synthetic images have one class each"
    names = np.asarray(population.columns["image_id"]).tolist()
    ids = np.array([hashlib.md5(name.encode()).hexdigest()[:16] for name in names])
    paths = [raw / LAYOUTS[0].format(*image_id[:3], id=image_id) for image_id in ids.tolist()]
    write_images(population, (None if i % 10 == 7 else path for i, path in enumerate(paths)))
    landmarks = 1000 + 37 * population.labels.ids  # far apart, as in the cleaned subset
    users = population.owners(np.arange(len(population)))
    authors = np.array([f'Zoë "{user}", of the world' for user in users.tolist()])
    clean = [(landmark, " ".join(ids[landmarks == landmark])) for landmark in np.unique(landmarks)]
    write_table(raw / "train_clean.csv", ("landmark_id", "images"), clean)
    title = "A title,\nin two lines"
    credits = [(i, "https://", author, "CC BY", title) for i, author in zip(ids, authors, strict=True)]
    write_table(raw / "train_attribution.csv", ("id", "url", "author", "license", "title"), credits[::-1])
    is_train = np.asarray(population.columns["split"]) == "train"
    _write_splits(raw, ids, authors, population.labels.ids, is_train, make_rng(synthetic.seed, "landmarks stand-in"))


def _write_splits(
    raw: Path, ids: Strings, authors: Strings, classes: Ints, mask: NDArray[np.bool_], rng: np.random.Generator
) -> None:
    """Write both splits as CSVs, by filters that enough authors of `mask` pass; other authors have test images only."""
    users, filters = np.unique(authors, return_inverse=True)[1], PAPER
    train = np.flatnonzero(filter_images(classes, users, filters, mask))
    while len(np.unique(users[train])) < min(10, len(np.unique(users[mask]))):
        minima = {name: max(1, value // 2) for name, value in asdict(filters).items() if name.startswith("min_")}
        filters = replace(filters, **minima)
        train = np.flatnonzero(filter_images(classes, users, filters, mask))
    test = _test_images(classes, users, train, np.ones(len(ids), bool), filters, rng)
    chosen = np.unique(classes[train])
    for files, subset in zip(SPLITS.values(), (chosen, chosen[: -(-len(chosen) // 2)]), strict=True):
        train_rows, test_rows = (
            [(authors[i], ids[i], np.searchsorted(subset, classes[i])) for i in rows if classes[i] in subset]
            for rows in (train, test)
        )
        write_table(raw / files[0], ("user_id", "image_id", "class"), train_rows)
        write_table(raw / files[1], ("image_id", "class"), [row[1:] for row in test_rows])
