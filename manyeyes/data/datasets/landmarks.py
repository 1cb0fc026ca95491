"""Landmarks-User-160k and gld23k, from the released splits or anew from GLD-v2-clean (Hsu et al. 2020, section 4.2)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import simplejpeg
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data.datasets.released_splits import (
    Entries,
    as_strings,
    find_file,
    make_manifest,
    read_released,
    read_table,
    sample_per_class,
    write_table,
)
from manyeyes.data.download.fetch import FEDERATED_VISION, RemoteFile
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

SPLITS = {  # the train and test files of each
    "160k": ("federated_train.csv", "test.csv"),
    "23k": ("mini_gld_train_split.csv", "mini_gld_test.csv"),
}
# GLD-v2's 500 archives extracted into `train`, or beside the tables; and images as TFF and FedML leave them.
LAYOUTS = ("train/{0}/{1}/{2}/{id}.jpg", "{0}/{1}/{2}/{id}.jpg", "images/{id}.jpg")

_TFF = "https://storage.googleapis.com/tff-datasets-public/"
_GLD = "https://s3.amazonaws.com/google-landmark/"
RELEASED = (RemoteFile(FEDERATED_VISION + "landmarks-user-160k.zip", "53c36bd7d5fc12f927af2820b7e4a57c"),)
RELEASED_23K = (
    RemoteFile(_TFF + "mini_gld_train_split.csv", "9fd62cf79a67046fdd673d3a0ac52841"),
    RemoteFile(_TFF + "mini_gld_test.csv", "298e9d19d66357236f66fe8e22920933"),
)
ANNOTATIONS = (RemoteFile(_GLD + "metadata/train_clean.csv"), RemoteFile(_GLD + "metadata/train_attribution.csv"))
PHOTOGRAPHS = tuple(RemoteFile(f"{_GLD}train/images_{number:03d}.tar") for number in range(500))  # about 1 GB each
NOTES = {
    "source": "https://github.com/cvdfoundation/google-landmark",
    "licence": "annotations CC BY 4.0; each photograph has its own, a CC BY without ND",
}


@dataclass(frozen=True)
class Filters:
    """What a landmark and a user must have to stay, and how many test images a landmark may have."""

    landmark_images: int = 30
    landmark_users: int = 10
    user_images: int = 30
    user_landmarks: int = 5
    test_images: int = 10

    def halved(self) -> Filters:
        return Filters(
            max(1, self.landmark_images // 2),
            max(1, self.landmark_users // 2),
            max(1, self.user_images // 2),
            max(1, self.user_landmarks // 2),
            self.test_images,
        )


PAPER = Filters()


def read_manifest(
    raw: Path,
    *,
    split: str = "160k",
    splits: Path | None = None,
    construct: bool = False,
    seed: int = 0,
    filters: Filters = PAPER,
) -> Manifest:
    """One split, from its CSVs in `splits` (or `raw`) or constructed from GLD-v2-clean's; images below `raw`."""
    if split not in SPLITS:
        raise ValueError(f"Landmarks has no split {split!r}; give one of {', '.join(SPLITS)}.")
    if construct and split != "160k":
        raise ValueError("How gld23k was chosen is not published, so it cannot be constructed; give its released CSVs.")
    entries = constructed(raw, seed, filters) if construct else _released(splits or raw, split)
    paths = [_path(raw, name) for name in entries.image_ids.tolist()]
    notes = {**NOTES, "split": split, "constructed": construct} | ({"seed": seed} if construct else {})
    return make_manifest("landmarks", raw, entries, paths, notes)


def constructed(raw: Path, seed: int, filters: Filters = PAPER) -> Entries:
    """The largest set of images in which every landmark and every user has enough, and a test set by other authors."""
    clean = read_table(_find(raw, "train_clean.csv"), ("landmark_id", "images"))
    attribution = read_table(_find(raw, "train_attribution.csv"), ("id", "author"))
    images = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(clean["images"])).combine_chunks()
    ids = images.flatten()
    names, landmarks = _coded(pc.take(clean["landmark_id"], pc.list_parent_indices(images)))
    authors, users = _coded(pc.take(attribution["author"], pc.index_in(ids, value_set=attribution["id"])))

    known = np.array([author.strip() != "" for author in authors], bool)[users]
    train = enough(landmarks, users, filters, known)
    if not train.any():
        raise ValueError(f"No landmark and user in {raw} pass the filters; the published files have 2,028 and 1,262.")
    left = np.flatnonzero(known & np.isin(landmarks, landmarks[train]) & ~np.isin(users, users[train]))
    g = make_rng(seed, "landmarks")
    tested = left[sample_per_class(landmarks[left], filters.test_images, g)]
    chosen = np.concatenate([np.flatnonzero(train), tested])
    kept = np.unique(landmarks[train])
    kept = kept[np.argsort([int(names[number]) for number in kept.tolist()])]
    place = np.zeros(len(names), np.int64)
    place[kept] = np.arange(len(kept))
    return Entries(
        as_strings(ids.take(pa.array(chosen))),
        np.where(np.arange(len(chosen)) < train.sum(), np.array(authors)[users[chosen]], ""),
        np.repeat(["train", "test"], [train.sum(), len(tested)]),
        SingleLabels(place[landmarks[chosen]], tuple(names[number] for number in kept.tolist())),
    )


def enough(landmarks: Ints, users: Ints, filters: Filters, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which images stay when landmarks and users with too few are cut again and again, until all have enough.

    The paper asks all four conditions of the result, and one pass would leave users who lost a landmark. What is left
    is the one largest set that satisfies them, whatever is cut first.
    """
    keep = among.copy()
    while True:
        before = keep.sum()
        keep &= _rich(landmarks, users, keep, filters.landmark_images, filters.landmark_users)
        keep &= _rich(users, landmarks, keep, filters.user_images, filters.user_landmarks)
        if keep.sum() == before:
            return keep


def _rich(of: Ints, across: Ints, keep: NDArray[np.bool_], images: int, others: int) -> NDArray[np.bool_]:
    """Whether the thing that each image belongs to has so many of the kept images, across so many others."""
    size, width = int(of.max(initial=0)) + 1, int(across.max(initial=0)) + 1
    counts = np.bincount(of[keep], minlength=size)
    pairs = np.unique(of[keep] * width + across[keep])
    spread = np.bincount(pairs // width, minlength=size)
    return ((counts >= images) & (spread >= others))[of]


def _coded(column: Any) -> tuple[list[str], Ints]:
    """The different values of a text column, and the place of each entry's among them; "" where there is none."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found = column.fill_null("").dictionary_encode()
    return found.dictionary.to_pylist(), found.indices.to_numpy().astype(np.int64)


def _released(folder: Path, split: str) -> Entries:
    train, test = SPLITS[split]
    path = _find(folder, train)
    return read_released(path, path.with_name(test))


def _find(folder: Path, name: str) -> Path:
    path = find_file(folder, name)
    if path is None:
        raise ValueError(f"Folder {folder} has no {name}; download it there.")
    return path


def _path(raw: Path, name: str) -> str:
    """Where the image is below the raw folder; empty where it is not."""
    if len(name) < 3 or not name.isalnum():
        raise ValueError(
            f"Image id {name!r} is none of GLD-v2's, which have 16 hexadecimal digits; give the right CSV."
        )
    paths = (layout.format(*name[:3], id=name) for layout in LAYOUTS)
    return next((path for path in paths if (raw / path).is_file()), "")


def write_synthetic(world: SyntheticImages, raw: Path) -> None:
    """Write a procedural world as GLD-v2-clean, with released splits of it and a tenth of the images missing."""
    people = make_synthetic(world)
    assert isinstance(people.labels, SingleLabels)
    names = np.asarray(people.columns["image_id"]).tolist()
    ids = np.array([hashlib.md5(name.encode()).hexdigest()[:16] for name in names])
    for example, name in enumerate(ids.tolist()):
        if example % 10 != 7:  # these are missing
            path = raw / LAYOUTS[0].format(*name[:3], id=name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(simplejpeg.encode_jpeg(people.pixels(np.array([example]))[0], quality=95))
    classes, users = people.labels.ids, np.repeat(people.user_ids, people.num_examples)
    landmarks = 1000 + 37 * classes  # far apart, as the cleaned subset's are
    author = [f'Zoë "{user}", of the world' for user in users.tolist()]
    clean = [(number, " ".join(ids[landmarks == number])) for number in np.unique(landmarks)]
    write_table(raw / "train_clean.csv", ("landmark_id", "images"), clean)
    credit = [(ids[row], "https://", author[row], "CC BY", "A title,\nin two lines") for row in range(len(ids))][::-1]
    write_table(raw / "train_attribution.csv", ("id", "url", "author", "license", "title"), credit)

    # The released splits, by filters that enough of the world passes; its val and test users are only tested on.
    among, filters = np.asarray(people.columns["split"]) == "train", PAPER
    train, wanted = enough(classes, users, filters, among), min(10, len(np.unique(users[among])))
    while len(np.unique(users[train])) < wanted:
        filters = filters.halved()
        train = enough(classes, users, filters, among)
    left = np.flatnonzero(np.isin(classes, classes[train]) & ~np.isin(users, users[train]))
    g = make_rng(world.seed, "landmarks stand-in")
    tested = left[sample_per_class(classes[left], filters.test_images, g)]
    kept = np.unique(classes[train])
    for split, some, folder in (("160k", kept, raw / "landmarks-user-160k"), ("23k", kept[: -(-len(kept) // 2)], raw)):
        held = [
            (author[row], ids[row], np.searchsorted(some, classes[row]))
            for row in np.flatnonzero(train)
            if classes[row] in some
        ]
        shown = [(ids[row], np.searchsorted(some, classes[row])) for row in tested if classes[row] in some]
        write_table(folder / SPLITS[split][0], ("user_id", "image_id", "class"), held)
        write_table(folder / SPLITS[split][1], ("image_id", "class"), shown)
