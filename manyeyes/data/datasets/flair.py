"""FLAIR from its raw download: labels_and_metadata.json and small_images/ (Song et al., 2022, arXiv:2207.08869)."""

import json
import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from manyeyes.core.population import MultiLabels, Population
from manyeyes.data.manifest import Files, Manifest, Source, keeps_synthetic_mark, write_synthetic_marker
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic, write_images
from manyeyes.data.synthetic.users import taxonomy
from manyeyes.io.parsing import first_line, named_if_damaged

PAGE = "https://github.com/apple/ml-flair"
LABELS, RELATIONSHIP, IMAGES = "labels_and_metadata.json", "label_relationship.txt", "small_images"
LICENSE = "CC-BY-NC-4.0"

TASKS = {"coarse": "labels", "fine": "fine_grained_labels"}  # our names, and FLAIR's
SPLITS = {"train": "train", "val": "val", "dev": "val", "validation": "val", "test": "test"}
_ID, _NAMES = pa.string(), pa.list_(pa.string())
SCHEMA = pa.schema({"image_id": _ID, "user_id": _ID, "labels": _NAMES, "fine_grained_labels": _NAMES})


@keeps_synthetic_mark
def read_manifest(raw: Path) -> Manifest:
    """Return every image that the labels list and `small_images/` contains."""
    table, split = _read_labels(raw / LABELS)
    folder = raw / IMAGES
    source = Files(folder, [f"{image_id}.jpg" for image_id in table["image_id"].to_pylist()])
    manifest = make_manifest(table, split, source, PAGE)
    present = set(os.listdir(folder) if folder.is_dir() else [])
    has_image = np.array([source.name(index) in present for index in manifest.image])
    if not has_image.any():
        raise ValueError(f"{folder} has none of the {len(manifest)} images of {LABELS}: extract {IMAGES}*.tar.gz")
    return check_users_and_labels(manifest.drop_missing(has_image), raw / RELATIONSHIP)


def make_manifest(
    table: pa.Table, split: NDArray[Any], source: Source, url: str, classes: Mapping[str, Collection[str]] | None = None
) -> Manifest:
    """Return the rows of a table with the columns of SCHEMA, each image once; `classes` may be more than it has."""
    all_classes = classes or dict.fromkeys(TASKS, ())
    manifest = Manifest(
        dataset="flair",
        source=source,
        image=np.arange(len(table)),
        users=np.array(table["user_id"].to_pylist(), np.str_),
        split=split,
        labels={
            task: _multi_labels(table[column].combine_chunks(), all_classes[task]) for task, column in TASKS.items()
        },
        columns={"image_id": np.array(table["image_id"].to_pylist(), np.str_)},
        notes={"source": url, "license": LICENSE},
    )
    return manifest.drop_duplicates()


def check_users_and_labels(manifest: Manifest, relationship: Path) -> Manifest:
    """Put each user into one split; note users that were in two, and labels that the taxonomy does not have."""
    names, first, user = np.unique(manifest.users, return_index=True, return_inverse=True)
    split = manifest.split[first][user]  # the first one counts, as in pfl-research
    moved = names[np.unique(user[split != manifest.split])]
    problems: dict[str, Any] = {"users in two splits, assigned to their first": moved}
    if known := read_classes(relationship):
        problems[f"labels missing from {RELATIONSHIP}"] = [
            name for task in TASKS for name in manifest.labels[task].classes if name not in known[task]
        ]
    return replace(manifest, split=split).add_notes(problems)


def read_relationship(path: Path) -> list[tuple[str, str]]:
    """Return (fine label, coarse label) from lines `fine -> coarse`, or nothing if the file does not exist."""
    pairs = []
    with named_if_damaged(path, "download it again"):
        text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        fine, *coarse = (label.strip() for label in re.split("->" if "->" in line else "[,\t]", line))
        if line.strip() and len(coarse) != 1:
            raise ValueError(f"Line {number} of {path} is {line!r}: write `fine label -> coarse label`")
        pairs += [(fine, name) for name in coarse]
    return pairs


def read_classes(path: Path) -> dict[str, set[str]]:
    """Return the classes of each task in the taxonomy; empty if the file does not exist."""
    pairs = read_relationship(path)
    return dict(zip(("fine", "coarse"), map(set, zip(*pairs, strict=True)), strict=True)) if pairs else {}


def _multi_labels(names: pa.ListArray, more_classes: Collection[str]) -> MultiLabels:
    """Return lists of label names as labels; the classes are in sorted order, as in pfl-research."""
    codes = pc.list_flatten(names).dictionary_encode()
    class_names = [*codes.dictionary.to_pylist(), *more_classes]
    classes, rank = np.unique(np.array(class_names, np.str_), return_inverse=True)
    owner = np.repeat(np.arange(len(names)), pc.fill_null(pc.list_value_length(names), 0).to_numpy())
    return MultiLabels.from_pairs(owner, rank[codes.indices.to_numpy()], len(names), tuple(classes.tolist()))


def _read_labels(path: Path) -> tuple[pa.Table, NDArray[np.str_]]:
    """Return the entries of the JSON file as a table, and the split of each."""
    if not path.exists():
        raise ValueError(f"{path} does not exist: give the folder of FLAIR's raw download, which contains it")
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    splits: list[str] = []

    def add(entry: dict[str, Any]) -> None:  # called while the text is parsed: the parsed document never is in memory
        _check_entry(entry, f"entry {len(splits)} of {path}")
        splits.append(SPLITS[entry["partition"]])
        for name in ("image_id", "user_id"):
            columns[name].append(str(entry[name]))
        for name in TASKS.values():
            columns[name].append([sys.intern(label) for label in entry[name]])

    try:
        with path.open(encoding="utf-8") as file:
            document = json.load(file, object_hook=add, parse_int=str)  # ids, of any length
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not complete JSON ({first_line(error)}): download it again") from None
    if not splits or not isinstance(document, list) or len(document) != len(splits):
        raise ValueError(f"{path} is not a list of entries with an image_id each: download it again")
    return pa.table(columns, SCHEMA), np.array(splits)


def _check_entry(entry: dict[str, Any], where: str) -> None:
    for name in (*TASKS.values(), "user_id", "image_id", "partition"):
        if name not in entry:
            raise ValueError(f"{where} has no {name!r}: download it again")
    if str(entry["partition"]) not in SPLITS:
        raise ValueError(f"{where} has partition {entry['partition']!r}: it must be train, val or test")
    for name in TASKS.values():
        labels = entry[name]
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"{where} has {name} {labels!r}: give a list of names")


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images and labels as FLAIR's raw download."""
    if synthetic.split != "users":
        raise ValueError(f"split is {synthetic.split!r}: set split='users', as each user of FLAIR is in one split")
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    columns = {
        "user_id": [f"user{user:06d}" for user in np.repeat(population.user_ids, population.num_examples)],
        "image_id": np.asarray(population.columns["image_id"]).tolist(),
        "labels": _label_names(population, "coarse"),
        "fine_grained_labels": _label_names(population, "fine"),
        "partition": np.asarray(population.columns["split"]).tolist(),
    }
    entries = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    write_images(population, (raw / IMAGES / f"{image_id}.jpg" for image_id in columns["image_id"]))
    (raw / LABELS).write_text(json.dumps(entries))
    classes = taxonomy(synthetic.coarse, synthetic.fine, synthetic.class_imbalance)
    pairs = zip(classes.fine, classes.parent, strict=True)
    (raw / RELATIONSHIP).write_text("".join(f"{fine} -> {classes.coarse[parent]}\n" for fine, parent in pairs))


def _label_names(population: Population, task: str) -> list[list[str]]:
    labels = population.task(task).labels
    assert isinstance(labels, MultiLabels), f"synthetic images have several {task} labels"
    return [[labels.classes[i] for i in labels.indices[start:stop]] for start, stop in pairwise(labels.indptr)]
