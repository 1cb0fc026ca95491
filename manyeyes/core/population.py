"""Population: images, labels and the users who hold them; the only thing that algorithms see of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import torch

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class ImageSource(Protocol):
    """Images by row, wherever they are: in memory, in files, or on a device."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all images [N, H, W, 3]."""

    @property
    def dtype(self) -> np.dtype[np.uint8]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]: ...

    def take(self, rows: Ints, device: torch.device) -> torch.Tensor:
        """Return the images of these rows on a device."""


@dataclass(frozen=True, eq=False)
class ArrayImages:
    """An array of images, or anything that is indexed as one."""

    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        return np.dtype(self.array.dtype)

    @property
    def reads_from_disk(self) -> bool:
        return not isinstance(self.array, np.ndarray) or isinstance(self.array, np.memmap)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        return np.asarray(self.array[rows])

    def take(self, rows: Ints, device: torch.device) -> torch.Tensor:
        import torch  # here, since commands that train nothing start without it

        return torch.from_numpy(self[rows]).to(device)


def as_image_source(images: Any) -> ImageSource:
    """Return images as an ImageSource: those that are one already, and arrays wrapped."""
    is_source = hasattr(images, "take") and not isinstance(images, np.ndarray)
    source: ImageSource = images if is_source else ArrayImages(images)
    return source


@dataclass(frozen=True, eq=False)
class SingleLabels:
    """One class for each example."""

    ids: Ints
    classes: tuple[str, ...]
    multi = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _whole_numbers(self.ids, "labels"))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, examples: NDArray[Any]) -> SingleLabels:
        return replace(self, ids=self.ids[examples])

    def targets(self, examples: NDArray[Any]) -> Ints:
        """Class ids [B], as a loss wants them."""
        return self.ids[examples]

    def nonzero(self, examples: NDArray[Any] | slice = slice(None)) -> tuple[Ints, Ints]:
        """(position in `examples`, class) of every label."""
        ids = self.ids[examples]
        return np.arange(len(ids)), ids

    def counts(self, examples: NDArray[Any] | slice = slice(None)) -> Ints:
        """How often each class occurs in the given examples [C]."""
        return np.bincount(self.ids[examples], minlength=len(self.classes))


@dataclass(frozen=True, eq=False)
class MultiLabels:
    """Any number of classes for each example, as compressed rows: example i has `indices[starts[i]:starts[i + 1]]`."""

    indptr: Ints
    indices: Ints
    classes: tuple[str, ...]
    multi = True

    def __post_init__(self) -> None:
        for name in ("indptr", "indices"):
            object.__setattr__(self, name, _whole_numbers(getattr(self, name), name))

    @staticmethod
    def from_lists(rows: list[Any], classes: tuple[str, ...]) -> MultiLabels:
        """From one list of class ids for each example; an id that is there twice counts once."""
        once = [list(dict.fromkeys(row)) for row in rows]
        starts = np.concatenate([[0], np.cumsum([len(row) for row in once])]).astype(np.int64)
        return MultiLabels(starts, _whole_numbers([label for row in once for label in row], "labels"), classes)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def nonzero(self, examples: NDArray[Any] | slice = slice(None)) -> tuple[Ints, Ints]:
        """(position in `examples`, class) of every label."""
        begin = self.indptr[:-1][examples]
        length = self.indptr[1:][examples] - begin
        ends = np.cumsum(length)
        owner = np.repeat(np.arange(len(length)), length)
        place = np.arange(len(owner)) - np.repeat(ends - length, length)
        return owner, self.indices[np.repeat(begin, length) + place]

    def take(self, examples: NDArray[Any]) -> MultiLabels:
        owner, indices = self.nonzero(examples)
        count = len(np.arange(len(self))[examples])
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))]).astype(np.int64)
        return replace(self, indptr=starts, indices=indices)

    def targets(self, examples: NDArray[Any]) -> Floats:
        """Multi-hot rows [B, C], as a loss wants them."""
        owner, indices = self.nonzero(examples)
        hot = np.zeros((len(examples), len(self.classes)), np.float32)
        hot[owner, indices] = 1
        return hot

    def counts(self, examples: NDArray[Any] | slice = slice(None)) -> Ints:
        """In how many of the given examples each class occurs [C]."""
        return np.bincount(self.nonzero(examples)[1], minlength=len(self.classes))


Labels = SingleLabels | MultiLabels


@dataclass(frozen=True, eq=False)
class Population:
    """Users and their examples; user u holds the examples `offsets[u]` to `offsets[u + 1]`.

    `images` is anything that an array of rows indexes into uint8 `[B, H, W, 3]` (an array, a memory map). A view (a
    split, a subset) shares it and says in `rows` which image each of its examples is.
    """

    images: Any
    labels: Labels
    offsets: Ints
    user_ids: Ints  # a number for each user that no view changes: chance and client state are keyed by it
    image_indices: Ints  # the row of `images` of each example
    columns: Mapping[str, NDArray[Any] | Labels] = field(default_factory=dict)  # one entry for each example
    user_names: NDArray[Any] | None = None  # what each user is called in the source

    @staticmethod
    def from_arrays(images: Any, labels: Labels, users: ArrayLike, **columns: ArrayLike | Labels) -> Population:
        """From one user for each image, in any order; each user's examples are brought together."""
        users = _user_ids(users)
        if not isinstance(labels, SingleLabels | MultiLabels):
            raise ValueError(
                f"labels are of type {type(labels).__name__}: "
                "give SingleLabels(ids, classes) or MultiLabels.of(rows, classes)"
            )
        _check_images(images)
        arrays = {name: _column(name, column) for name, column in columns.items()}
        sizes = {"images": len(images), "labels": len(labels), **{k: len(v) for k, v in arrays.items()}}
        for name, size in sizes.items():
            if size != len(users):
                raise ValueError(f"{name} has {size} entries but users has {len(users)}: give one of each an example")
        _check_classes(labels)
        try:
            names, index, counts = np.unique(users, return_inverse=True, return_counts=True)
        except TypeError as error:
            raise ValueError(f"user ids cannot be sorted ({error}): give all numbers, or all strings") from error
        order = np.argsort(index, kind="stable")
        return Population(
            images=images,
            labels=labels.take(order),
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            user_ids=np.arange(len(names)),
            image_indices=order,
            columns={k: _take(v, order) for k, v in arrays.items()},
            user_names=names,
        )

    def __len__(self) -> int:
        return len(self.image_indices)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labels.classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.images.shape[1:]
        return int(height), int(width), int(channels)

    @cached_property
    def num_examples(self) -> Ints:
        """How many examples each user holds."""
        return np.diff(self.offsets)

    @cached_property
    def class_counts(self) -> Ints:
        """How often each class occurs in all examples."""
        return self.labels.counts()

    def examples(self, user: int) -> Ints:
        """The examples of one user."""
        return np.arange(self.offsets[user], self.offsets[user + 1])

    def owners(self, examples: ArrayLike) -> Ints:
        """The user who holds each example."""
        return np.searchsorted(self.offsets, examples, side="right") - 1

    def histogram(self, user: int) -> Ints:
        """How often each class occurs with one user."""
        return self.labels.counts(slice(self.offsets[user], self.offsets[user + 1]))

    def histograms(self) -> Ints:
        """How often each class occurs with each user [U, C]."""
        owner, classes = self.labels.nonzero()
        cells = np.bincount(
            self.owners(owner) * len(self.classes) + classes, minlength=len(self.user_ids) * len(self.classes)
        )
        return cells.reshape(len(self.user_ids), len(self.classes))

    def pixels(self, examples: NDArray[Any]) -> NDArray[np.uint8]:
        """The images of the given examples [B, H, W, 3]."""
        return np.asarray(self.images[self.image_indices[examples]])

    def user_name(self, user: int) -> str:
        """What a person calls this user."""
        return str(self.user_ids[user] if self.user_names is None else self.user_names[user])

    def filter(self, mask: NDArray[np.bool_]) -> Population:
        """The view of the examples for which `keep` is true, and of the users who hold any of them."""
        examples = np.flatnonzero(mask)
        counts = np.bincount(self.owners(examples), minlength=len(self.user_ids))
        present = counts > 0
        return replace(
            self,
            labels=self.labels.take(examples),
            offsets=np.concatenate([[0], np.cumsum(counts[present])]).astype(np.int64),
            user_ids=self.user_ids[present],
            image_indices=self.image_indices[examples],
            columns={k: _take(v, examples) for k, v in self.columns.items()},
            user_names=None if self.user_names is None else self.user_names[present],
        )

    def split(self, name: str) -> Population:
        """The view of one split: train, val or test."""
        column = self.columns.get("split")
        if column is None:
            raise ValueError(f"this population has no split column: it cannot give its {name} part")
        keep = np.asarray(column) == name
        if not keep.any():
            raise ValueError(f"this population has no {name} split; it has {', '.join(np.unique(np.asarray(column)))}")
        return self.filter(keep)

    def task(self, name: str) -> Population:
        """The same examples with another of their label columns."""
        labels = self.columns.get(name)
        if not isinstance(labels, SingleLabels | MultiLabels):
            known = [k for k, v in self.columns.items() if isinstance(v, SingleLabels | MultiLabels)]
            raise ValueError(f"no labels are called {name!r}: this population has {', '.join(known) or 'one kind'}")
        return replace(self, labels=labels)

    def pooled(self) -> Population:
        """Everyone's examples in one pair of hands: what centralised training sees."""
        return replace(
            self, offsets=np.array([0, len(self)]), user_ids=np.array([-1]), user_names=np.array(["everyone"])
        )


def _whole_numbers(numbers: ArrayLike, name: str) -> Ints:
    """As a one-dimensional int64 array; one that is that already is itself returned."""
    if isinstance(numbers, np.ndarray) and numbers.dtype == np.int64 and numbers.ndim == 1:
        return numbers
    fix = "give class ids, whole numbers from 0: one for each example in SingleLabels, one list each in MultiLabels.of"
    try:
        array = np.asarray(numbers)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name} are rows of several lengths: {fix}") from error
    if array.ndim != 1:
        raise ValueError(f"{name} have shape {list(array.shape)}: {fix}")
    if len(array) and array.dtype.kind not in "iub":
        raise ValueError(f"{name} are {array.dtype}: {fix}")
    return array.astype(np.int64)


def _user_ids(users: ArrayLike) -> NDArray[Any]:
    try:
        array = np.asarray(users)
    except ValueError as error:  # rows of several lengths
        raise ValueError("users are rows of several lengths: give one user id for each example") from error
    if array.ndim != 1 or len(array) == 0:
        raise ValueError("a population needs at least one example, and one user for each")
    return array


def _column(name: str, column: ArrayLike | Labels) -> NDArray[Any] | Labels:
    if isinstance(column, SingleLabels | MultiLabels):
        return column
    try:
        array = np.asarray(column)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name} has rows of several lengths: give one entry for each example") from error
    if array.ndim == 0:
        raise ValueError(f"{name} is one {type(column).__name__}, {column!r}: give one entry for each example")
    return array


def _check_images(images: Any) -> None:
    shape: tuple[int, ...] = getattr(images, "shape", ())
    if getattr(images, "dtype", None) != np.uint8 or len(shape) != 4 or shape[3] != 3:
        found = f"{getattr(images, 'dtype', type(images).__name__)} {tuple(shape)}"
        raise ValueError(f"images are {found}: give a uint8 array [number, height, width, 3]")


def _check_classes(labels: Labels) -> None:
    """Refuse a label that is no class."""
    ids, count = labels.nonzero()[1], len(labels.classes)
    if len(ids) and not (ids.min() >= 0 and ids.max() < count):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(
            f"there is a label {wrong} and there are {count} classes, counted from 0: give labels from 0 to {count - 1}"
        )


def _take(column: NDArray[Any] | Labels, examples: NDArray[Any]) -> NDArray[Any] | Labels:
    return column.take(examples) if isinstance(column, SingleLabels | MultiLabels) else np.asarray(column)[examples]
