"""The store: a prepared dataset as a folder that can be moved, copied and opened quickly.

    images.npy        uint8 [images, height, width, 3]; or images.jpegs and offsets.npy, image i at offsets[i:i + 2]
    examples.parquet  one row per example, sorted by user: user, split, row of the images, labels, columns
    meta.json         version, dataset, classes, shape, counts, problems, sizes and checksums
    prepare.log       one line per problem: its kind, a tab, the name of the image, id or user

An unreadable image is black (in images.jpegs: empty) and belongs to no example.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.core.population import Population
from manyeyes.data.store import examples
from manyeyes.data.store.builder import IMAGE_FILES, VERSION, crc32
from manyeyes.data.store.hdf5 import open_hdf5
from manyeyes.data.store.images import JpegImages, MemoryMappedImages

FIX = "copy the store again, or prepare it again"


def open_population(path: Path, task: str | None = None) -> Population:
    """Open a prepared dataset, or an HDF5 file of FLAIR, with the labels of a task; by default of its first one."""
    path = Path(path)
    if path.is_file():
        return open_hdf5(path, task or "coarse")
    meta = _read_meta(path)
    for name, size in meta["bytes"].items():
        if not (path / name).exists():
            raise ValueError(f"{path / name} does not exist: {FIX}")
        if (actual := (path / name).stat().st_size) != size:
            raise ValueError(f"{path / name} has {actual:,} bytes instead of {size:,}: {FIX}")
    tasks = {name: tuple(classes) for name, classes in meta["tasks"].items()}
    user_names, offsets, rows, columns = examples.read(path / "examples.parquet", tasks)
    labels: Any = columns[next(iter(tasks))]
    image_file = path.absolute() / IMAGE_FILES[meta["encoding"]]
    is_raw = meta["encoding"] == "raw"
    images = MemoryMappedImages(image_file) if is_raw else JpegImages(image_file, *meta["shape"])
    population = Population(images, labels, offsets, np.arange(len(user_names)), rows, columns, user_names)
    return population if task is None else population.task(task)


def verify(path: Path) -> None:
    """Read all files of a store, and raise ValueError if one has a wrong checksum."""
    for name, crc in _read_meta(path)["crc32"].items():
        if crc != crc32(path / name):
            raise ValueError(f"{path / name} is damaged: {FIX}")


def _read_meta(path: Path) -> dict[str, Any]:
    if not (path / "meta.json").exists():
        target = Path(os.path.realpath(path))
        if target.with_name(f".{target.name}.preparing").exists():
            raise ValueError(f"{path} is not complete: run its `manyeyes data prepare` command again")
        raise ValueError(f"No prepared dataset at {path}: create one with `manyeyes data prepare`")
    try:
        meta: dict[str, Any] = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        version = int(meta["version"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path / 'meta.json'} is damaged: {FIX}") from None
    if version != VERSION:
        fix = "upgrade manyeyes" if version > VERSION else "prepare it again"
        raise ValueError(f"{path} has format {version} and this manyeyes reads format {VERSION}: {fix}")
    return meta
