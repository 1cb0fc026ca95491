"""A listing: what a raw dataset says it holds, before any image is read. Every dataset's file ends in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Labels


class Source(Protocol):
    """Where the images of a listing are; it can be sent to another process."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        """The encoded bytes of one image, or its pixels [H, W, 3]; OSError where it is not there."""

    def name(self, index: int) -> str:
        """What a person calls it: its file, its id."""


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
    """Images that the dataset gives as one array."""

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
    """One entry for each example, in any order; `image` says which image of the source it shows."""

    dataset: str
    source: Source
    image: NDArray[np.int64]
    users: NDArray[Any]  # what each example's user is called; "" for a test set that belongs to nobody
    split: NDArray[Any]  # train, val or test
    labels: Mapping[str, Labels]  # one for each task; the first is the one that is used if nobody asks
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # image_id, latitude, longitude, ...
    notes: Mapping[str, Any] = field(default_factory=dict)  # for meta.json: source, licence, what was left out and why

    def __len__(self) -> int:
        return len(self.users)

    def take(self, chosen: NDArray[Any]) -> Manifest:
        """The same listing with the chosen examples, in that order."""
        return Manifest(
            self.dataset,
            self.source,
            self.image[chosen],
            self.users[chosen],
            self.split[chosen],
            {name: labels.take(chosen) for name, labels in self.labels.items()},
            {name: column[chosen] for name, column in self.columns.items()},
            self.notes,
        )


NAMED = 5  # of what is odd, so many are named in the notes


def count_and_name(which: NDArray[Any]) -> dict[str, Any]:
    """For the notes: how many, and the first few by name."""
    return {"count": len(which), "first": [str(name) for name in which[:NAMED]]}
