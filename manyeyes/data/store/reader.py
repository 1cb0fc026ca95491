"""The store: a prepared dataset as a folder that can be moved, copied and opened in a moment.

    images.npy        uint8 [images, height, width, 3]; or images.jpegs and offsets.npy, image i at offsets[i:i + 2]
    examples.parquet  one row an example, each user's together: user, split, row of the images, labels, columns
    meta.json         version, dataset, classes, shape, counts, problems, sizes and checksums
    prepare.log       one line a problem: its kind, a tab, the name of the image, id or user

An image that cannot be read is black (in images.jpegs: of no length) and no example shows it.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.core.population import Population
from manyeyes.data.store import examples
from manyeyes.data.store.builder import IMAGES, VERSION, crc32
from manyeyes.data.store.hdf5 import open_hdf5
from manyeyes.data.store.images import JpegImages, MemoryMappedImages
from manyeyes.data.store.writer import Summary, write

__all__ = ["Summary", "open", "verify", "write"]


def open(path: Path, task: str | None = None) -> Population:
    """A prepared dataset; its labels are those of `task` (default: the dataset's first), its columns hold all."""
    path = Path(path)
    meta = _meta(path)
    for name, size in meta["bytes"].items():
        found = (path / name).stat().st_size if (path / name).exists() else None
        if found != size:
            what = "is not there" if found is None else f"has {found:,} bytes instead of {size:,}"
            raise ValueError(f"{path / name} {what}: copy the store again, or prepare it anew")
    tasks = {name: tuple(classes) for name, classes in meta["tasks"].items()}
    names, offsets, rows, columns = examples.read(path / "examples.parquet", tasks)
    labels = columns[next(iter(tasks))]
    assert not isinstance(labels, np.ndarray)
    population = Population(_images(path, meta), labels, offsets, np.arange(len(names)), rows, columns, names)
    return population if task is None else population.task(task)


def open_population(path: Path, task: str | None = None) -> Population:
    """The population at `path`, with the labels of `task` or those that come first."""
    if path.is_file():
        return open_hdf5(path, task or "coarse")
    return open(path, task)


def verify(path: Path) -> None:
    """Read all of a store and refuse one whose bytes are not those that were written."""
    for name, crc in _meta(path)["crc32"].items():
        if crc != crc32(path / name):
            raise ValueError(f"{path / name} is damaged: copy the store again, or prepare it anew")


def _meta(path: Path) -> dict[str, Any]:
    """What a store says of itself, if this program can read it."""
    made = Path(os.path.realpath(path))
    half = made.parent / f".{made.name}.preparing"
    if not (path / "meta.json").exists():
        if half.exists():
            raise ValueError(f"{path} is half made: give its prepare command again to go on")
        raise ValueError(f"{path} is no store: make one with manyeyes data prepare")
    try:
        meta: dict[str, Any] = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        version = int(meta["version"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path / 'meta.json'} is damaged: copy the store again, or prepare it anew") from None
    if version != VERSION:
        what = "upgrade manyeyes" if version > VERSION else "prepare it again"
        raise ValueError(f"{path} has format {version} and this manyeyes reads format {VERSION}: {what}")
    return meta


def _images(path: Path, meta: dict[str, Any]) -> MemoryMappedImages | JpegImages:
    images = path.absolute() / IMAGES[meta["encoding"]]
    return (
        MemoryMappedImages(images)
        if meta["encoding"] == "raw"
        else JpegImages(images, images.parent / "offsets.npy", *meta["shape"])
    )
