"""Manifest: what a raw dataset contains, listed before any image is read. Every reader of a dataset returns one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import SYNTHETIC, Labels

MAX_NAMED = 5  # examples that a note names
SYNTHETIC_MARKER = "synthetic_by_manyeyes.txt"  # in a raw folder of synthetic images
SYNTHETIC_NOTES = {"source": "synthetic, by manyeyes", "license": "Apache-2.0, as manyeyes"}
Options = ParamSpec("Options")


class Source(Protocol):
    """Where the images of a manifest are; it can be sent to another process."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        """Return the encoded bytes of one image, or its pixels [H, W, 3]; raise OSError if it does not exist."""

    def name(self, index: int) -> str:
        """Return the name of one image in messages: its file or its id."""


@dataclass(frozen=True)
class Files:
    """Images in files below one folder."""

    root: Path
    paths: Sequence[str]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        return (self.root / self.paths[index]).read_bytes()

    def name(self, index: int) -> str:
        return self.paths[index]


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images in one array."""

    images: NDArray[np.uint8]  # [N, H, W, 3]
    prefix: str = "image"

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> NDArray[np.uint8]:
        return self.images[index]

    def name(self, index: int) -> str:
        return f"{self.prefix} {index}"


@dataclass(frozen=True, eq=False)
class Manifest:
    """One entry per example, in any order."""

    dataset: str
    source: Source
    image: NDArray[np.int64]  # the index of each example's image in `source`
    users: NDArray[Any]  # the name of each example's user; "" in a test set without users
    split: NDArray[Any]  # train, val or test
    labels: Mapping[str, Labels]  # of each task; the first is the default
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # image_id, latitude, longitude, ...
    notes: Mapping[str, Any] = field(default_factory=dict)  # for meta.json: source, license, what was left out and why
    num_missing: int = 0  # examples that are left out because they have no image
    skipped: tuple[tuple[str, str], ...] = ()  # files that are not among the examples: why, and their names
    caveats: tuple[str, ...] = ()  # of the population, such as SYNTHETIC

    def __len__(self) -> int:
        return len(self.users)

    def take(self, examples: NDArray[Any]) -> Manifest:
        """Return the manifest of the given examples, in that order."""
        return replace(
            self,
            image=self.image[examples],
            users=self.users[examples],
            split=self.split[examples],
            labels={task: labels.take(examples) for task, labels in self.labels.items()},
            columns={name: column[examples] for name, column in self.columns.items()},
        )

    def drop_duplicates(self) -> Manifest:
        """Return the first example of each image id."""
        ids = self.columns["image_id"]
        first = np.sort(np.unique(ids, return_index=True)[1])
        return self.take(first).add_notes({"duplicate image ids, left out": np.delete(ids, first)})

    def drop_missing(self, has_image: NDArray[np.bool_]) -> Manifest:
        """Return the examples whose image exists."""
        missing = self.columns["image_id"][~has_image]
        present = replace(self.take(np.flatnonzero(has_image)), num_missing=self.num_missing + len(missing))
        return present.add_notes({"images without a file, left out": missing})

    def as_synthetic(self) -> Manifest:
        """Return the manifest of synthetic images in the dataset's format: their source is not the dataset's."""
        return replace(self, notes={**self.notes, **SYNTHETIC_NOTES}, caveats=(SYNTHETIC, *self.caveats))

    def add_notes(self, problems: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Manifest:
        """Note each problem that something has: how many have it, and the names of the first few."""
        notes = dict(self.notes)
        for problem, names in problems.items():
            if len(names):
                notes[problem] = {"count": len(names), "first": [str(name) for name in names[:MAX_NAMED]]}
        return replace(self, notes=notes)


def write_synthetic_marker(raw: Path) -> None:
    """Mark a raw folder, before the first image is in it, so that all that is made of it can say that it is synthetic."""
    raw.mkdir(parents=True, exist_ok=True)
    text = "The images in this folder are synthetic, made by manyeyes: they are not those of any dataset.\n"
    (raw / SYNTHETIC_MARKER).write_text(text)


def is_marked_synthetic(path: Path) -> bool:
    """Return whether a raw folder or file, or a folder around it, is marked as synthetic."""
    return any((folder / SYNTHETIC_MARKER).is_file() for folder in (path, *path.absolute().parents))


def keeps_synthetic_mark(
    read: Callable[Concatenate[Path, Options], Manifest],
) -> Callable[Concatenate[Path, Options], Manifest]:
    """Let the reader of a raw folder mark what it reads in a folder of synthetic images."""

    @wraps(read)
    def read_marked(raw: Path, /, *args: Options.args, **options: Options.kwargs) -> Manifest:
        manifest = read(raw, *args, **options)
        return manifest.as_synthetic() if is_marked_synthetic(Path(raw)) else manifest

    return read_marked


def files_by_name(folder: Path) -> dict[str, str]:
    """Return the path of each file below a folder, by its name; of files with one name, the first in sorted order."""
    paths: dict[str, str] = {}
    for subfolder, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in names:
            paths.setdefault(name, os.path.relpath(os.path.join(subfolder, name), folder))
    return paths


def check_choice(setting: str, value: object, choices: Iterable[object]) -> None:
    if value not in choices:
        raise ValueError(f"Unknown {setting} {value!r}: choose {', '.join(map(str, choices))}")
