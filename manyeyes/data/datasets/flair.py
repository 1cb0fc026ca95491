"""FLAIR from its raw download: labels_and_metadata.json and small_images/ (Song et al., 2022, arXiv:2207.08869)."""

import json
import os
import re
import tarfile
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from manyeyes.core.population import Ints, MultiLabels, Population
from manyeyes.data.manifest import Files, Manifest, Source, count_and_name
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.data.synthetic.users import taxonomy

PAGE = "https://github.com/apple/ml-flair"
BASE = "https://docs-assets.developer.apple.com/ml-research/datasets/flair/"
LABELS, RELATIONSHIP, IMAGES = "labels_and_metadata.json", "label_relationship.txt", "small_images"
LABEL_FILES = (f"labels/{LABELS}", f"labels/{RELATIONSHIP}")  # below BASE, as are the archives
ARCHIVES = tuple(f"images/small/small_images-{number:02d}.tar.gz" for number in range(43))
LICENCE = "CC-BY-NC-4.0"

TASKS = {"coarse": "labels", "fine": "fine_grained_labels"}  # what we call them, what FLAIR calls them
SPLITS = {"train": "train", "val": "val", "dev": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True, eq=False)
class Entries:
    """What FLAIR says of each image, unchecked."""

    image_ids: NDArray[np.str_]
    users: NDArray[np.str_]
    splits: NDArray[np.str_]
    labels: Mapping[str, MultiLabels]


def read_manifest(raw: Path) -> Manifest:
    """Every image that the labels name and `small_images/` holds."""
    entries = _read(raw / LABELS)
    folder = raw / IMAGES
    files = set(os.listdir(folder) if folder.is_dir() else [])
    present = np.array([f"{name}.jpg" in files for name in entries.image_ids])
    if not present.any():
        raise ValueError(
            f"{folder} holds none of the {len(present)} images of {LABELS}: extract {IMAGES}-*.tar.gz there"
        )
    return assemble(
        entries,
        present,
        lambda kept: Files(folder, [f"{name}.jpg" for name in entries.image_ids[kept]]),
        read_relationship(raw / RELATIONSHIP),
        {"source": PAGE, "licence": LICENCE},
    )


def assemble(
    entries: Entries,
    present: NDArray[np.bool_],
    source: Callable[[Ints], Source],
    relationship: Sequence[tuple[str, str]],
    notes: Mapping[str, Any],
) -> Manifest:
    """The entries with an image, each image once and each user in one split; whatever was odd is in the notes."""
    first = np.zeros(len(present), bool)
    first[np.unique(entries.image_ids, return_index=True)[1]] = True
    kept = np.flatnonzero(present & first)
    names, began, user = np.unique(entries.users[kept], return_index=True, return_inverse=True)
    split = entries.splits[kept][began][user]  # where a user is in two, the first counts, as with pfl-research
    odd = {
        "images without a file, left out": entries.image_ids[~present & first],
        "image ids listed again, left out": entries.image_ids[~first],
        "users in two splits, kept in their first": names[np.unique(user[split != entries.splits[kept]])],
    }
    if relationship:
        fine, coarse = (set(names) for names in zip(*relationship, strict=True))
        strange = [name for name in entries.labels["coarse"].classes if name not in coarse]
        strange += [name for name in entries.labels["fine"].classes if name not in fine]
        odd[f"labels unknown to {RELATIONSHIP}, kept"] = np.array(strange)
    return Manifest(
        dataset="flair",
        source=source(kept),
        image=np.arange(len(kept)),
        users=entries.users[kept],
        split=split,
        labels={task: labels.take(kept) for task, labels in entries.labels.items()},
        columns={"image_id": entries.image_ids[kept]},
        notes={**notes, **{what: count_and_name(which) for what, which in odd.items() if len(which)}},
    )


def compress(owner: Ints, indices: Ints, classes: tuple[str, ...], count: int) -> MultiLabels:
    """(image, class) of every label as compressed rows; a label that an image has twice counts once."""
    owner, indices = np.divmod(np.unique(owner * len(classes) + indices), max(1, len(classes)))
    return MultiLabels(np.searchsorted(owner, np.arange(count + 1)), indices, classes)


def in_order(codes: Ints, names: Iterable[str]) -> tuple[Ints, tuple[str, ...]]:
    """Places in `names` as classes, which are the names in sorted order as with pfl-research; and the classes."""
    classes, rank = np.unique(np.array(list(names), dtype=np.str_), return_inverse=True)
    return rank[codes], tuple(classes.tolist())


def read_relationship(path: Path) -> list[tuple[str, str]]:
    """(fine label, coarse label) from lines `fine -> coarse`; none where there is no such file."""
    pairs = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines() if path.exists() else [], 1):
        fine, *coarse = (part.strip() for part in re.split("->" if "->" in line else "[,\t]", line))
        if line.strip() and len(coarse) != 1:
            raise ValueError(f"line {number} of {path} is {line!r}: a line is `fine label -> coarse label`")
        pairs += [(fine, name) for name in coarse]
    return pairs


def _read(path: Path) -> Entries:
    if not path.exists():
        raise ValueError(f"{path} is not there: give the folder of FLAIR's raw download, which has it")
    ids: list[str] = []
    users: list[str] = []
    splits: list[str] = []
    lengths = {task: array("q") for task in TASKS}
    codes = {task: array("q") for task in TASKS}
    known: dict[str, dict[str, int]] = {task: {} for task in TASKS}

    def entry(found: dict[str, Any]) -> None:  # called as the text is parsed, so that no tree of it is ever held
        try:
            for task, key in TASKS.items():
                labels, code = found[key], known[task]
                if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
                    raise ValueError(f"entry {len(ids)} of {path} has {key} {labels!r}: give a list of names")
                lengths[task].append(len(labels))
                codes[task].extend([code.setdefault(label, len(code)) for label in labels])
            users.append(str(found["user_id"]))
            splits.append(SPLITS[found["partition"]])
            ids.append(str(found["image_id"]))
        except KeyError as error:
            if error.args[0] == found.get("partition"):
                wrong = f"is in partition {error}: it must be train, val or test"
            else:
                wrong = f"has no {error}: download it again"
            raise ValueError(f"entry {len(ids)} of {path} {wrong}") from None

    try:
        with path.open(encoding="utf-8") as file:
            whole = json.load(file, object_hook=entry)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not whole JSON ({error}): download it again") from None
    if not ids or not isinstance(whole, list) or len(whole) != len(ids):
        raise ValueError(f"{path} is not a list of entries with an image_id each: download it again")
    return Entries(
        np.array(ids),
        np.array(users),
        np.array(splits),
        {
            task: compress(
                np.repeat(np.arange(len(ids)), lengths[task]), *in_order(np.array(codes[task]), known[task]), len(ids)
            )
            for task in TASKS
        },
    )


def write_synthetic(world: SyntheticImages, raw: Path, archives: int = 0) -> None:
    """Write a procedural world as FLAIR's raw download: images in `small_images/`, or packed in so many archives."""
    if not 0 <= archives <= len(ARCHIVES):
        raise ValueError(f"{archives} archives were asked for: FLAIR has {len(ARCHIVES)} at most")
    population, entries = write_default_synthetic(world)
    folder = raw / IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    for example, entry in enumerate(entries):
        (folder / f"{entry['image_id']}.jpg").write_bytes(jpeg(population, example))
    (raw / LABELS).write_text(json.dumps(entries))
    classes = taxonomy(world.coarse, world.fine, world.class_imbalance)
    pairs = zip(classes.fine, classes.parent, strict=True)
    (raw / RELATIONSHIP).write_text("".join(f"{fine} -> {classes.coarse[parent]}\n" for fine, parent in pairs))
    if archives:
        _pack(folder, archives)


def write_default_synthetic(world: SyntheticImages) -> tuple[Population, list[dict[str, Any]]]:
    """A world's photographs, and what FLAIR would say of each."""
    if world.split != "users":
        raise ValueError(f"the world's split is {world.split!r}: FLAIR's users are each in one split, give 'users'")
    population = make_synthetic(world)
    columns = {
        "user_id": [f"user{user:06d}" for user in np.repeat(population.user_ids, population.num_examples)],
        "image_id": np.asarray(population.columns["image_id"]).tolist(),
        "labels": _names(population, "coarse"),
        "fine_grained_labels": _names(population, "fine"),
        "partition": np.asarray(population.columns["split"]).tolist(),
    }
    return population, [dict(zip(columns, entry, strict=True)) for entry in zip(*columns.values(), strict=True)]


def _names(population: Population, task: str) -> list[list[str]]:
    """The names of each example's labels."""
    labels = population.task(task).labels
    assert isinstance(labels, MultiLabels)
    return [[labels.classes[i] for i in labels.indices[a:b]] for a, b in pairwise(labels.indptr)]


def jpeg(population: Population, example: int) -> bytes:
    """One photograph as a JPEG file's bytes."""
    return bytes(simplejpeg.encode_jpeg(population.pixels(np.array([example]))[0], quality=95))


def _pack(folder: Path, archives: int) -> None:
    """Move the images of a folder into archives beside it, named as FLAIR's."""
    paths = sorted(folder.iterdir())
    for number in range(archives):
        with tarfile.open(folder.parent / Path(ARCHIVES[number]).name, "w:gz", compresslevel=1) as archive:
            for path in paths[number::archives]:
                archive.add(path, f"{IMAGES}/{path.name}")
                path.unlink()
    folder.rmdir()
