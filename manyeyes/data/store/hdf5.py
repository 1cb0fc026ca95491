"""FLAIR as others have preprocessed it: the HDF5 files of pfl-research and of ml-flair, opened where they lie."""

import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5d, h5g, h5s
from numpy.typing import NDArray

from manyeyes.core.population import Ints, MultiLabels, Population
from manyeyes.data.datasets.flair import SPLITS, TASKS, compress


@dataclass(frozen=True, eq=False)
class Hdf5Images:
    """The images of one user of the file after another; rows are read when they are asked for."""

    path: Path
    groups: tuple[str, ...]  # of each user
    starts: Ints  # each user's first row, and the number of all rows
    offsets: Ints  # where in the file each user's images begin; -1 where they are not in one piece
    size: tuple[int, int, int]
    dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self), *self.size)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        rows = np.arange(len(self))[rows]
        users = np.searchsorted(self.starts, rows, side="right") - 1
        images = np.empty((*rows.shape, *self.size), np.uint8)
        places = (rows - self.starts[users]).ravel()
        for image, user, place in zip(images.reshape(-1, *self.size), users.ravel(), places, strict=True):
            self._read(image, int(user), int(place))
        return images

    def _read(self, image: NDArray[np.uint8], user: int, place: int) -> None:
        if self.offsets[user] < 0:
            self._hdf5[f"{self.groups[user]}/images"].read_direct(image, place)
        elif (
            os.preadv(self._bytes.fileno(), [image.data], int(self.offsets[user]) + place * image.nbytes) < image.nbytes
        ):
            raise OSError(f"{self.path} has become shorter since it was opened: copy it again")

    def __reduce__(self) -> tuple[Any, ...]:
        return Hdf5Images, (
            self.path,
            self.groups,
            self.starts,
            self.offsets,
            self.size,
        )  # another process opens its own

    @cached_property
    def _bytes(self) -> BinaryIO:
        return self.path.open("rb", buffering=0)

    @cached_property
    def _hdf5(self) -> h5py.File:
        return _open(self.path)


def open_hdf5(path: Path, task: str = "coarse") -> Population:
    """The population in an HDF5 file of pfl-research or ml-flair, its images left where they are."""
    if task not in TASKS:
        raise ValueError(f"FLAIR has no task {task!r}: give coarse or fine")
    with _open(path) as file:
        layout = _layout(file, TASKS[task])
        members = {name: list(h5g.open(file.id, name.encode())) for name in SPLITS if name in file}
        users = [(name, user.decode()) for name, of_split in members.items() for user in of_split]
        if not users:
            raise ValueError(f"{path} has no users below /train, /val or /test: it is not a file of FLAIR")
        images, (ids, *values) = _read(file, [f"{name}/{user}" for name, user in users], layout.datasets)
    labels = layout.labels(images, layout.classes, *values)
    names, user_of = np.unique([user for _, user in users], return_inverse=True)
    if len(names) < len(users):
        warnings.warn(f"{len(users) - len(names)} users of {path} are in two splits", stacklevel=2)
    counts = np.diff(images.starts)
    split = np.repeat([SPLITS[name] for name, _ in users], counts)
    columns: dict[str, Any] = {task: labels, "split": split, "image_id": np.array(_texts(images, ids))}
    return replace(Population.from_arrays(images, labels, np.repeat(user_of, counts), **columns), user_names=names)


def _open(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r", locking="best-effort")
    except FileNotFoundError:
        raise ValueError(f"{path} is not there: give the HDF5 file that pfl-research or ml-flair wrote") from None
    except OSError as error:
        if "truncated" in str(error):
            raise ValueError(f"{path} is cut short at {path.stat().st_size} bytes: copy or make it again") from None
        raise ValueError(f"{path} is not HDF5: give the file that pfl-research or ml-flair wrote") from None


@dataclass(frozen=True)
class _Layout:
    """How one of the two writes its labels."""

    datasets: tuple[str, ...]  # of each user, the image ids first
    labels: Callable[..., MultiLabels]
    classes: tuple[str, ...]


def _layout(file: h5py.File, name: str) -> _Layout:
    """By what the metadata holds: pfl-research has a label mapping, ml-flair a label counter."""
    metadata = file.get("metadata", {})
    mapping, counter = (metadata.get(f"{name.removesuffix('s')}_{kind}") for kind in ("mapping", "counter"))
    if mapping is None and counter is None:
        inside = ", ".join(file) or "nothing"
        raise ValueError(f"{file.filename} holds {inside} and no label mapping: it is not of pfl-research or ml-flair")
    if any("image" in next(iter(file[split].values()), ()) for split in SPLITS if split in file):
        raise ValueError(f"{file.filename} is grouped by image: make it again without --not_group_data_by_user")
    if mapping is None:
        return _Layout(("image_ids", name), _joined, tuple(sorted(json.loads(counter[()]))))
    number = json.loads(mapping[()])
    classes = tuple(sorted(number, key=number.__getitem__))
    if [number[label] for label in classes] != list(range(len(classes))):
        raise ValueError(f"the label mapping of {file.filename} does not count from 0: make the file again")
    return _Layout(("image_ids", f"{name}_row", f"{name}_col"), _coordinates, classes)


def _read(file: h5py.File, groups: Sequence[str], names: Sequence[str]) -> tuple[Hdf5Images, list[list[NDArray[Any]]]]:
    """Where the images of all groups are, and the datasets of these names; in one pass, for the file may be cold."""
    path = Path(file.filename).absolute()
    counts, offsets = np.zeros((2, len(groups)), np.int64)
    values: list[list[NDArray[Any]]] = [[] for _ in names]
    shape: tuple[int, ...] = ()
    with path.open("rb", buffering=0) as raw:
        for user, group in enumerate(groups):
            found = _find(file, group, "images")
            counts[user], *size = found.shape
            shape = shape or tuple(size)
            if found.dtype != np.uint8 or tuple(size) != shape or len(shape) != 3 or shape[2] != 3:
                raise ValueError(
                    f"the images of {group} in {path} are {found.dtype} {size}: all must be uint8 [height, width, 3] "
                    "of one size"
                )
            offset = found.get_offset()
            offsets[user] = -1 if offset is None else offset
            for column, name in zip(values, names, strict=True):
                column.append(_values(_find(file, group, name), raw))
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Hdf5Images(path, tuple(groups), starts, offsets, (shape[0], shape[1], shape[2])), values


def _find(file: h5py.File, group: str, name: str) -> h5d.DatasetID:
    try:
        return h5d.open(file.id, f"{group}/{name}".encode())
    except KeyError:
        raise ValueError(f"{group} in {file.filename} has no {name}: make the file again") from None


def _values(found: h5d.DatasetID, raw: BinaryIO) -> NDArray[Any]:
    """A small dataset, read past the library where it lies in one piece: with 150,000 of them, twice as fast."""
    offset, dtype = found.get_offset(), found.dtype
    if offset is not None and dtype.kind in "uiS":
        return np.frombuffer(os.pread(raw.fileno(), found.get_storage_size(), offset), dtype)
    values = np.empty(found.shape, dtype)
    if values.size:
        found.read(h5s.ALL, h5s.ALL, values)
    return values


def _coordinates(
    images: Hdf5Images, classes: tuple[str, ...], rows: list[NDArray[Any]], columns: list[NDArray[Any]]
) -> MultiLabels:
    """pfl-research: the image (of its user) and the class of every label."""
    sizes = np.array([len(row) for row in rows])
    row, column = np.concatenate(rows).astype(np.int64), np.concatenate(columns).astype(np.int64)
    paired = [len(column) for column in columns] == sizes.tolist()
    if not paired or (row >= np.repeat(np.diff(images.starts), sizes)).any() or (column >= len(classes)).any():
        raise ValueError(f"{images.path} has labels of images or classes that it does not have: make it again")
    return compress(row + np.repeat(images.starts[:-1], sizes), column, classes, len(images))


def _joined(images: Hdf5Images, classes: tuple[str, ...], texts: list[NDArray[Any]]) -> MultiLabels:
    """ml-flair: the names of each image's labels, with bars between them."""
    number = {label: index for index, label in enumerate(classes)}
    labels = [text.split("|") if text else [] for text in _texts(images, texts)]
    try:
        indices = np.array([number[label] for row in labels for label in row], np.int64)
    except KeyError as unknown:
        raise ValueError(f"{images.path} has a label {unknown} that its own label counter lacks") from None
    return compress(np.repeat(np.arange(len(labels)), [len(row) for row in labels]), indices, classes, len(images))


def _texts(images: Hdf5Images, values: list[NDArray[Any]]) -> list[str]:
    """One text for each image."""
    for group, texts, count in zip(images.groups, values, np.diff(images.starts), strict=True):
        if len(texts) != count:
            raise ValueError(
                f"{group} in {images.path} has {count} images but {len(texts)} ids or labels: make it again"
            )
    return [text.decode() for texts in values for text in texts.tolist()]
