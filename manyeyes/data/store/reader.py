"""The store: a prepared dataset as a folder that can be moved, copied and opened quickly.

    images.npy        uint8 [images, height, width, 3]; or images.jpegs and offsets.npy, image i at offsets[i:i + 2]
    examples.parquet  one row per example, sorted by user: user, split, row of the images, labels, columns
    checksums.npy     uint32: the CRC-32 of the bytes of each image
    meta.json         version, dataset, classes, shape, counts, problems, sizes and checksums of the files, and its own
    prepare.log       one line per problem: its kind, a tab, the name of the image, id or user

An unreadable image is black (in images.jpegs: empty) and belongs to no example.
"""

import io
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np

from manyeyes.core.population import SYNTHETIC, Population
from manyeyes.core.registry import register
from manyeyes.data.manifest import is_marked_synthetic
from manyeyes.data.store.builder import IMAGE_FILES
from manyeyes.data.store.checksums import CHECKSUMS_FILE, FIX, ImageChecksums, npy_header, read_checked
from manyeyes.data.store.images import JpegImages, MemoryMappedImages
from manyeyes.data.store.meta import EXAMPLES_FILE, read_meta
from manyeyes.io.packages import import_optional
from manyeyes.io.parsing import raise_damage

MAX_BYTES_IN_MEMORY = 2**28  # of images that are read at once, so that no round waits for the disk


@register("dataset", "store")
def load_store(
    path: Annotated[str, "folder or HDF5 file of the prepared dataset"],
    task: Annotated[str, "which of its labels are predicted; empty: the first ones"] = "",
) -> Population:
    """A dataset that `manyeyes data prepare` made, or an HDF5 file of FLAIR."""
    return open_population(Path(path), task or None, MAX_BYTES_IN_MEMORY)


def open_population(path: Path, task: str | None = None, max_bytes_in_memory: int = 0) -> Population:
    """Open a prepared dataset, or an HDF5 file of FLAIR, with the labels of a task; by default of its first one."""
    path = Path(path)
    if path.is_file():
        hdf5 = import_optional("manyeyes.data.store.hdf5")
        population = cast(Population, hdf5.open_hdf5(path, task or "coarse"))
        return replace(population, images=_read_if_small(population.images, max_bytes_in_memory))
    meta = read_meta(path)
    examples = import_optional("manyeyes.data.store.examples")
    check_sizes(path, meta)
    try:
        images = open_images(path.absolute(), meta)
    except Exception as error:
        raise_damage(path, error, FIX)
    if CHECKSUMS_FILE not in meta["crc32"]:
        fix = f"`manyeyes data verify {path} --add-checksums` checks it and adds them"
        warnings.warn(f"{path} has no checksums of its images: {fix}", stacklevel=2)
    pixels, caveats = _read_if_small(images, max_bytes_in_memory), _caveats(meta)
    tasks = {name: tuple(classes) for name, classes in meta["tasks"].items()}
    data = read_checked(path / EXAMPLES_FILE, meta["crc32"][EXAMPLES_FILE])
    try:
        user_names, offsets, rows, columns = examples.read(data, tasks)
        labels: Any = columns[next(iter(tasks))]
    except Exception as error:
        raise_damage(path / EXAMPLES_FILE, error, FIX)
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(images):
        raise ValueError(f"{path / EXAMPLES_FILE} has rows that are not among the {len(images)} images: {FIX}")
    users = np.arange(len(user_names))
    population = Population(pixels, labels, offsets, users, rows, columns, user_names, caveats)
    return population if task is None else population.task(task)


def _read_if_small(images: Any, max_bytes: int) -> Any:
    """Return images of up to this size as an array, and larger ones as they are."""
    return images[:] if np.prod(images.shape) <= max_bytes else images


def read_caveats(path: Path) -> tuple[str, ...]:
    """Return the caveats of a prepared dataset, without reading its examples; empty where there is none to open."""
    if path.is_file():
        return (SYNTHETIC,) if is_marked_synthetic(path) else ()
    with suppress(ValueError, OSError):
        return _caveats(read_meta(path))
    return ()


def _caveats(meta: Mapping[str, Any]) -> tuple[str, ...]:
    caveats = meta.get("caveats")
    return tuple(map(str, caveats)) if isinstance(caveats, list) else ()


def check_sizes(path: Path, meta: Mapping[str, Any]) -> None:
    """Raise ValueError if a file of a store is missing or has another size."""
    for name, size in meta["bytes"].items():
        if not (path / name).exists():
            raise ValueError(f"{path / name} does not exist: {FIX}")
        if (actual := (path / name).stat().st_size) != size:
            raise ValueError(f"{path / name} has {actual:,} bytes instead of {size:,}: {FIX}")


def open_images(path: Path, meta: Mapping[str, Any]) -> MemoryMappedImages | JpegImages:
    """Open the images of a store; each is checked when it is first read."""
    file, crcs, checksums = path / IMAGE_FILES[meta["encoding"]], meta["crc32"], None
    if CHECKSUMS_FILE in crcs:
        data = read_checked(path / CHECKSUMS_FILE, crcs[CHECKSUMS_FILE])
        checksums = ImageChecksums(file, np.load(io.BytesIO(data)))
    if meta["encoding"] == "jpeg":
        read_checked(path / "offsets.npy", crcs["offsets.npy"])
        height, width = meta["shape"]
        return JpegImages(file, height, width, checksums)
    if checksums is not None:
        header = npy_header((len(checksums), *meta["shape"], 3))
        with file.open("rb") as opened:
            if opened.read(len(header)) != header:
                raise ValueError(f"{file} is damaged: {FIX}")
    return MemoryMappedImages(file, checksums)
