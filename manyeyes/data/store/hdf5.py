"""FLAIR as preprocessed by others: the HDF5 files of pfl-research and ml-flair, read in place.

The structure of a file is read in another process: a changed byte can make the HDF5 library loop for ever, or crash.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5d, h5g, h5s
from numpy.typing import NDArray

from manyeyes.core.population import SYNTHETIC, Ints, MultiLabels, Population
from manyeyes.data.clean_spawn import brief_context
from manyeyes.data.datasets.flair import SPLITS, TASKS
from manyeyes.data.manifest import is_marked_synthetic
from manyeyes.io.child_process import SignOfLife, call_in_process
from manyeyes.io.parsing import named_if_damaged, parse_json
from manyeyes.io.portable import pread, preadv

MAX_COMPRESSION = 2000  # of gzip, at most 1032
MAX_SILENT_SECONDS = 30.0  # of one user, or of the names of all
Values = list[NDArray[Any]]  # one array for each user


@dataclass(frozen=True, eq=False)
class Hdf5Images:
    """The images of all users, read when they are indexed."""

    path: Path
    groups: tuple[str, ...]  # of each user
    starts: Ints  # each user's first row, and the number of all rows
    offsets: Ints  # the file offset of each user's images; -1 where they are not contiguous
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
        indices = rows - self.starts[users]
        for image, user, index in zip(images.reshape(-1, *self.size), users.flat, indices.flat, strict=True):
            self._read(image, int(user), int(index))
        return images

    def _read(self, image: NDArray[np.uint8], user: int, index: int) -> None:
        offset = int(self.offsets[user])
        if offset < 0:
            self._hdf5[f"{self.groups[user]}/images"].read_direct(image, index)
        elif preadv(self._file.fileno(), [image.data], offset + index * image.nbytes) < image.nbytes:
            raise OSError(f"{self.path} has become shorter since it was opened: copy it again")

    def __reduce__(self) -> tuple[Any, ...]:  # another process opens the file itself
        return Hdf5Images, (self.path, self.groups, self.starts, self.offsets, self.size)

    @cached_property
    def _file(self) -> BinaryIO:
        return self.path.open("rb", buffering=0)

    @cached_property
    def _hdf5(self) -> h5py.File:
        return _open_file(self.path)


def open_hdf5(path: Path, task: str = "coarse") -> Population:
    """Return the population in an HDF5 file of pfl-research or ml-flair; the images are read from the file."""
    if task not in TASKS:
        raise ValueError(f"FLAIR has no task {task!r}: choose {' or '.join(TASKS)}")
    with named_if_damaged(path, "copy or make it again"):
        population: Population = call_in_process(brief_context(), MAX_SILENT_SECONDS, _read_population, path, task)
    if repeated := len(population.images.groups) - len(set(population.user_ids)):
        warnings.warn(f"{repeated} users of {path} are in two splits", stacklevel=2)
    return population


def _read_population(path: Path, task: str, sign_of_life: SignOfLife) -> Population:
    with _open_file(path) as file:
        classes, is_pfl = _read_classes(file, TASKS[task].removesuffix("s"))
        members = {split: list(h5g.open(file.id, split.encode())) for split in SPLITS if split in file}
        users = [(split, user.decode()) for split, split_users in members.items() for user in split_users]
        if not users:
            raise ValueError(f"{path} has no users below /train, /val or /test: give a file of FLAIR")
        datasets = (f"{TASKS[task]}_row", f"{TASKS[task]}_col") if is_pfl else (TASKS[task],)
        groups = ["/".join(user) for user in users]
        images, (ids, *labels) = _read_users(file, groups, ("image_ids", *datasets), sign_of_life)
    names, user_index = np.unique([user for _, user in users], return_inverse=True)
    counts = np.diff(images.starts)
    columns: dict[str, Any] = {
        task: (_from_coordinates if is_pfl else _from_names)(images, classes, *labels),
        "split": np.repeat([SPLITS[split] for split, _ in users], counts),
        "image_id": np.array(_decode_texts(images, ids)),
    }
    population = Population.from_arrays(images, columns[task], np.repeat(user_index, counts), **columns)
    return replace(population, user_names=names, caveats=(SYNTHETIC,) if is_marked_synthetic(path) else ())


def _open_file(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r", locking="best-effort")
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: give the HDF5 file that pfl-research or ml-flair wrote") from None
    except OSError as error:
        if "truncated" in str(error):
            raise ValueError(f"{path} is truncated at {path.stat().st_size} bytes: copy or make it again") from None
        raise ValueError(f"{path} is not an HDF5 file: give the one that pfl-research or ml-flair wrote") from None


def _read_classes(file: h5py.File, name: str) -> tuple[tuple[str, ...], bool]:
    """Return the classes, and whether pfl-research wrote the file: it has a label mapping, ml-flair a label counter."""
    metadata = file.get("metadata", {})
    mapping, counter = (metadata.get(f"{name}_{kind}") for kind in ("mapping", "counter"))
    if mapping is None and counter is None:
        content = f"{', '.join(file) or 'nothing'} and no label mapping"
        raise ValueError(f"{file.filename} contains {content}: give a file of pfl-research or ml-flair")
    first = [next(iter(file[split].values()), None) for split in SPLITS if split in file]
    if any(isinstance(member, h5py.Group) and "image" in member for member in first):
        raise ValueError(f"{file.filename} is grouped by image: make it again without --not_group_data_by_user")
    if mapping is None:
        return tuple(sorted(_read_json(counter))), False
    index = _read_json(mapping)
    classes = tuple(sorted(index, key=index.__getitem__))
    if [index[label] for label in classes] != list(range(len(classes))):
        raise ValueError(f"The label mapping of {file.filename} does not count from 0: make the file again")
    return classes, True


def _read_json(member: h5py.Dataset) -> Any:
    if not isinstance(member, h5py.Dataset) or member.shape != ():  # one of many values may be too large to read
        raise ValueError(f"{member.name} in {member.file.filename} is not one text: make the file again")
    return parse_json(member[()])


def _read_users(
    file: h5py.File, groups: Sequence[str], names: Sequence[str], sign_of_life: SignOfLife
) -> tuple[Hdf5Images, list[Values]]:
    """Return the images of all groups and their datasets of these names, in one pass over the file."""
    path = Path(file.filename).absolute()
    counts, offsets = np.zeros((2, len(groups)), np.int64)
    values: list[Values] = [[] for _ in names]
    size: tuple[int, ...] = ()
    with path.open("rb", buffering=0) as raw:
        for user, group in enumerate(groups):
            sign_of_life()
            images = _find(file, group, "images")
            size = size or images.shape[1:]
            if images.dtype != np.uint8 or images.shape[1:] != size or len(size) != 3 or size[2] != 3:
                what = f"{group} in {path} has {images.dtype} images {list(images.shape[1:])}"
                raise ValueError(f"{what}: make it again with uint8 [height, width, 3] of one size")
            _check_written(images, f"{group}/images")
            offset = images.get_offset()
            counts[user], offsets[user] = images.shape[0], -1 if offset is None else offset
            for column, name in zip(values, names, strict=True):
                column.append(_read_values(_find(file, group, name), raw))
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Hdf5Images(path, tuple(groups), starts, offsets, (size[0], size[1], size[2])), values


def _find(file: h5py.File, group: str, name: str) -> h5d.DatasetID:
    try:
        return h5d.open(file.id, f"{group}/{name}".encode())
    except KeyError:
        raise ValueError(f"{group} in {file.filename} has no {name}: make the file again") from None


def _read_values(dataset: h5d.DatasetID, raw: BinaryIO) -> NDArray[Any]:
    """Read a small dataset, without the library where it is contiguous: twice as fast for 150,000 of them."""
    offset, dtype = dataset.get_offset(), dataset.dtype
    if offset is not None and dtype.kind in "uiS":
        return np.frombuffer(pread(raw.fileno(), dataset.get_storage_size(), offset), dtype)
    _check_written(dataset, "a dataset")
    values = np.empty(dataset.shape, dtype)
    if values.size:
        dataset.read(h5s.ALL, h5s.ALL, values)
    return values


def _check_written(dataset: h5d.DatasetID, name: str) -> None:
    """Refuse a dataset that claims more values than the file can have: it would be allocated in memory."""
    num_bytes = int(np.prod(dataset.shape, dtype=np.float64)) * dataset.dtype.itemsize
    if num_bytes > MAX_COMPRESSION * dataset.get_storage_size():
        raise ValueError(f"{name} of shape {list(dataset.shape)} has only {dataset.get_storage_size()} bytes")


def _from_coordinates(images: Hdf5Images, classes: tuple[str, ...], rows: Values, columns: Values) -> MultiLabels:
    """Return the labels of pfl-research: the image (of its user) and the class of each."""
    sizes = list(map(len, rows))
    is_paired = list(map(len, columns)) == sizes
    row, column = (_whole_numbers(np.concatenate(values)) for values in (rows, columns))
    num_images = np.repeat(np.diff(images.starts), sizes)
    if not is_paired or not (_are_below(row, num_images) and _are_below(column, len(classes))):
        raise ValueError(f"{images.path} has labels of images or classes that it does not have: make it again")
    return MultiLabels.from_pairs(row + np.repeat(images.starts[:-1], sizes), column, len(images), classes)


def _whole_numbers(values: NDArray[Any]) -> Ints:
    """Return values of any type as integers; -1 for those that are none, such as NaN."""
    with np.errstate(invalid="ignore"):
        integers = values.astype(np.int64)
    return np.where(integers == values, integers, -1)


def _are_below(values: Ints, limits: Ints | int) -> bool:
    return bool(((values >= 0) & (values < limits)).all())


def _from_names(images: Hdf5Images, classes: tuple[str, ...], texts: Values) -> MultiLabels:
    """Return the labels of ml-flair: the names of each image's labels, separated by bars."""
    index = {label: number for number, label in enumerate(classes)}
    labels = [text.split("|") if text else [] for text in _decode_texts(images, texts)]
    try:
        indices = np.array([index[label] for row in labels for label in row], np.int64)
    except KeyError as label:
        raise ValueError(f"{images.path} has a label {label} that its label counter lacks: make it again") from None
    owners = np.repeat(np.arange(len(labels)), list(map(len, labels)))
    return MultiLabels.from_pairs(owners, indices, len(images), classes)


def _decode_texts(images: Hdf5Images, values: Values) -> list[str]:
    for group, texts, count in zip(images.groups, values, np.diff(images.starts), strict=True):
        if len(texts) != count:
            counts = f"{count} images but {len(texts)} ids or labels"
            raise ValueError(f"{group} in {images.path} has {counts}: make it again")
    return [text.decode() for texts in values for text in texts.tolist()]
