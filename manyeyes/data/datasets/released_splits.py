"""The federated splits that Hsu et al. (2020) released as CSV files, and what iNaturalist and Landmarks share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels
from manyeyes.data.manifest import Files, Manifest
from manyeyes.data.tables import read_columns

Strings = NDArray[np.str_]
MAX_CLASS_DIGITS = 18  # of a class, which is a 64-bit number


def find_file(folder: Path, *names: str, fix: str = "download it there") -> Path:
    """Return a file of one of these names in the folder or one level below, where archives put theirs."""
    for name in names:
        for path in (folder / name, *sorted(folder.glob(f"*/{name}"))):
            if path.is_file():
                return path
    raise ValueError(f"{folder} has no {' or '.join(names)}: {fix}")


def as_strings(column: pa.ChunkedArray) -> Strings:
    return np.array(column.to_pylist(), np.str_)


def unlocated_manifest(
    dataset: str, clients: Strings, labels: SingleLabels, columns: Mapping[str, NDArray[Any]]
) -> Manifest:
    """Return the manifest of the clients' training images and then of the test images, which are not located yet."""
    num_train, num_test = len(clients), len(labels) - len(clients)
    return Manifest(
        dataset,
        source=Files(Path(), ()),
        image=np.arange(len(labels)),
        users=np.concatenate([clients, np.full(num_test, "")]),
        split=np.repeat(["train", "test"], [num_train, num_test]),
        labels={"class": labels},
        columns=columns,
    )


def read_released(dataset: str, train: Path, test: Path, user: str = "user_id") -> Manifest:
    """Return a released split: CSVs with user_id, image_id, class and for iNaturalist the original label."""
    train_table = read_columns(train, (user, "image_id", "class"), optional=("label",))
    shared = [name for name in train_table.column_names if name != user]
    tables = [train_table, read_columns(test, shared)]
    columns = {name: np.concatenate([as_strings(table[name]) for table in tables]) for name in shared}
    labels = numbered_labels(columns["class"], columns[shared[-1]], train)
    return unlocated_manifest(dataset, as_strings(tables[0][user]), labels, {"image_id": columns["image_id"]})


def drop_clientless(manifest: Manifest) -> Manifest:
    """Drop the training examples whose user, "NA" or "", stands for no client."""
    is_clientless = (manifest.split == "train") & np.isin(manifest.users, ("NA", ""))
    ids = manifest.columns["image_id"][is_clientless]
    return manifest.take(np.flatnonzero(~is_clientless)).add_notes({"training images without a client, left out": ids})


def sample_per_class(classes: Ints, max_count: int, rng: np.random.Generator, min_count: int = 0) -> Ints:
    """Return at most `max_count` random examples of each class with at least `min_count`, in order."""
    order = rng.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    rank = np.arange(len(classes)) - np.repeat(starts, counts)
    return np.sort(order[(rank < max_count) & (np.repeat(counts, counts) >= min_count)])


def locate_images(manifest: Manifest, raw: Path, paths: Sequence[str], **notes: Any) -> Manifest:
    """Return the examples whose image exists, each once; the notes say how many of the listed ones that is.

    `paths` are below `raw`, one per example, and empty if the image does not exist.
    """
    manifest = replace(manifest, notes={**notes, **manifest.notes})
    name = f"{manifest.dataset} {manifest.notes['split']}"
    if not (manifest.split == "train").any():
        raise ValueError(f"No training example of {name} has a client: choose another split")
    listed = replace(manifest, source=Files(raw, paths), image=np.arange(len(paths))).drop_duplicates()
    located = listed.drop_missing(np.array([paths[index] != "" for index in listed.image]))
    listed_counts, found_counts = _counts(listed), _counts(located)
    if not found_counts["train"]:
        name = f"{listed_counts['train']:,} training images of {name}"
        raise ValueError(f"{raw} contains none of the {name}: extract the images there")
    coverage = {key: {"listed": count, "found": found_counts[key]} for key, count in listed_counts.items()}
    return replace(located, notes={**located.notes, "coverage": coverage})


def _counts(manifest: Manifest) -> dict[str, int]:
    is_train = manifest.split == "train"
    num_train = int(is_train.sum())
    return {"train": num_train, "test": len(manifest) - num_train, "users": len(np.unique(manifest.users[is_train]))}


def numbered_labels(class_numbers: Strings, names: Strings, path: Path) -> SingleLabels:
    """Return labels whose classes are in the order of their numbers."""
    for number in np.unique(class_numbers).tolist():
        if not number.isdecimal() or len(number) > MAX_CLASS_DIGITS:
            raise ValueError(f"Table {path} or its test set has class {number!r}: a class is a number from 0 on")
    _, first, ids = np.unique(class_numbers.astype(np.int64), return_index=True, return_inverse=True)
    classes = names[first]
    if (classes[ids] != names).any() or len(np.unique(classes)) < len(classes):
        raise ValueError(f"Table {path} and its test set give one class several labels: download both again")
    return SingleLabels(ids, tuple(classes.tolist()))
