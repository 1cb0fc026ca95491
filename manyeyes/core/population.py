"""Population: images, labels and the users who own them; the only view of data that algorithms have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manyeyes.core.notebook import html_table

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

SYNTHETIC = "synthetic images"  # the caveat of a population whose images were made by manyeyes
CAVEAT_SEPARATOR = "; "


@dataclass(frozen=True, eq=False)
class SingleLabels:
    """One class for each example."""

    ids: Ints
    classes: tuple[str, ...]
    multi = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _as_ids(self.ids, "labels"))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, examples: NDArray[Any]) -> SingleLabels:
        return replace(self, ids=self.ids[examples])

    def targets(self, examples: NDArray[Any]) -> Ints:
        """Return class ids [B], as a loss expects them."""
        return self.ids[examples]

    def nonzero(self, examples: NDArray[Any] | slice = slice(None)) -> tuple[Ints, Ints]:
        """Return (position in `examples`, class) of every label."""
        ids = self.ids[examples]
        return np.arange(len(ids)), ids

    def counts(self, examples: NDArray[Any] | slice = slice(None)) -> Ints:
        """Return how often each class occurs in the examples [C]."""
        return np.bincount(self.ids[examples], minlength=len(self.classes))


@dataclass(frozen=True, eq=False)
class MultiLabels:
    """Any number of classes for each example, as sparse rows: example i has `indices[indptr[i]:indptr[i + 1]]`."""

    indptr: Ints
    indices: Ints
    classes: tuple[str, ...]
    multi = True

    def __post_init__(self) -> None:
        for name in ("indptr", "indices"):
            object.__setattr__(self, name, _as_ids(getattr(self, name), name))

    @staticmethod
    def from_lists(rows: list[Any], classes: tuple[str, ...]) -> MultiLabels:
        """Make labels from one list of class ids for each example; a repeated id counts once."""
        unique = [list(dict.fromkeys(row)) for row in rows]
        ids = _as_ids([label for row in unique for label in row], "labels")
        return MultiLabels(_offsets([len(row) for row in unique]), ids, classes)

    @staticmethod
    def from_pairs(examples: Ints, labels: Ints, num_examples: int, classes: tuple[str, ...]) -> MultiLabels:
        """Make labels from (example, class id) pairs in any order; a repeated pair counts once."""
        examples, labels = np.divmod(np.unique(examples * len(classes) + labels), max(1, len(classes)))
        return MultiLabels(np.searchsorted(examples, np.arange(num_examples + 1)), labels, classes)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def nonzero(self, examples: NDArray[Any] | slice = slice(None)) -> tuple[Ints, Ints]:
        """Return (position in `examples`, class) of every label."""
        begin = self.indptr[:-1][examples]
        counts = self.indptr[1:][examples] - begin
        positions = np.repeat(np.arange(len(counts)), counts)
        offsets = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return positions, self.indices[np.repeat(begin, counts) + offsets]

    def take(self, examples: NDArray[Any]) -> MultiLabels:
        positions, indices = self.nonzero(examples)
        num_examples = len(np.arange(len(self))[examples])
        return replace(self, indptr=_offsets(np.bincount(positions, minlength=num_examples)), indices=indices)

    def targets(self, examples: NDArray[Any]) -> Floats:
        """Return multi-hot rows [B, C], as a loss expects them."""
        targets_BC = np.zeros((len(examples), len(self.classes)), np.float32)
        targets_BC[self.nonzero(examples)] = 1
        return targets_BC

    def counts(self, examples: NDArray[Any] | slice = slice(None)) -> Ints:
        """Return in how many of the examples each class occurs [C]."""
        return np.bincount(self.nonzero(examples)[1], minlength=len(self.classes))


Labels = SingleLabels | MultiLabels


def take_images(images: Any, rows: Ints, device: torch.device | None = None) -> Tensor:
    """Return the images of some rows [B, H, W, 3]: by the source's own `take(rows, device)`, else by index.

    Without a device they stay where they are. An array, whose `take` does something else, is indexed.
    """
    if hasattr(images, "take") and not isinstance(images, np.ndarray):
        taken: Tensor = images.take(rows, device)
        return taken
    import torch  # here, so that pages about runs do without it

    return torch.from_numpy(np.require(images[rows], requirements="W")).to(device)


@dataclass(frozen=True, eq=False)
class Population:
    """Users and their examples; user u has the examples `offsets[u]` to `offsets[u + 1]`.

    A view (a split, a subset) shares the images; `image_indices` has the row of each of its examples.
    """

    images: Any  # uint8 [N, H, W, 3] with a shape, a dtype and a length, read by `take_images`
    labels: Labels
    offsets: Ints
    user_ids: Ints  # the same in every view: random streams and client state are keyed by it
    image_indices: Ints
    columns: Mapping[str, NDArray[Any] | Labels] = field(default_factory=dict)  # one entry for each example
    user_names: NDArray[Any] | None = None  # of each user in the source
    caveats: tuple[str, ...] = ()  # what has to be said of results on these images: SYNTHETIC, "90 of 100 examples"

    @staticmethod
    def from_arrays(images: Any, labels: Labels, users: ArrayLike, **columns: ArrayLike | Labels) -> Population:
        """Make a population from the user of each image; examples are sorted by user.

        Parameters
        ----------
        columns
            Further entries of each example: a `split`, or labels of another task.
        """
        users = _as_array("users", users)
        if users.ndim != 1 or not len(users):
            raise ValueError("a population needs at least one example: give one user for each")
        if not isinstance(labels, SingleLabels | MultiLabels):
            raise ValueError(
                f"labels are of type {type(labels).__name__}: "
                "give SingleLabels(ids, classes) or MultiLabels.from_lists(rows, classes)"
            )
        _check_images(images)
        arrays = {name: _as_column(name, column) for name, column in columns.items()}
        sizes = {"images": len(images), "labels": len(labels), **{name: len(column) for name, column in arrays.items()}}
        for name, size in sizes.items():
            if size != len(users):
                raise ValueError(f"{name} has {size} entries and users has {len(users)}: give one for each example")
        ids, num_classes = labels.nonzero()[1], len(labels.classes)
        invalid = ids[(ids < 0) | (ids >= num_classes)]
        if len(invalid):
            raise ValueError(f"labels has class {invalid[0]} and there are {num_classes} classes: number them from 0")
        try:
            names, index, counts = np.unique(users, return_inverse=True, return_counts=True)
        except TypeError as error:
            raise ValueError(f"user ids cannot be sorted ({error}): give all numbers, or all strings") from error
        unsorted = Population(
            images, labels, _offsets(counts), np.arange(len(names)), np.arange(len(users)), arrays, names
        )
        return unsorted._select(np.argsort(index, kind="stable"))

    def __len__(self) -> int:
        return len(self.image_indices)

    def __repr__(self) -> str:
        return f"Population({', '.join(f'{name}: {value}' for name, value in self._summary().items())})"

    def _repr_html_(self) -> str:
        return html_table("Population", self._summary())

    def _summary(self) -> dict[str, str]:
        height, width, _ = self.image_shape
        low, middle, high = np.quantile(self.num_examples, (0.25, 0.5, 0.75)) if len(self.user_ids) else (0, 0, 0)
        names, counts = np.unique(np.asarray(self.columns.get("split", ())), return_counts=True)
        summary = {
            "images": f"{len(self):,} of {height} x {width}",
            "users": f"{len(self.user_ids):,} with {middle:g} images each (quartiles {low:g} and {high:g})",
            "classes": f"{len(self.classes):,}" + (", several per image" if self.labels.multi else ""),
            "splits": ", ".join(f"{name} {count:,}" for name, count in zip(names, counts, strict=True)),
            "note": CAVEAT_SEPARATOR.join(self.caveats),
        }
        return {name: text for name, text in summary.items() if text}

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labels.classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.images.shape[1:]
        return int(height), int(width), int(channels)

    @cached_property
    def num_examples(self) -> Ints:
        """The number of examples of each user [U]."""
        return np.diff(self.offsets)

    @cached_property
    def class_counts(self) -> Ints:
        """The number of examples of each class [C]."""
        return self.labels.counts()

    def examples(self, user: int) -> Ints:
        """Return the examples of one user."""
        return np.arange(self.offsets[user], self.offsets[user + 1])

    def owners(self, examples: ArrayLike) -> Ints:
        """Return the user of each example."""
        return np.searchsorted(self.offsets, examples, side="right") - 1

    def histogram(self, user: int) -> Ints:
        """Return the number of examples of each class that one user has [C]."""
        return self.labels.counts(slice(self.offsets[user], self.offsets[user + 1]))

    def histograms(self) -> Ints:
        """Return the number of examples of each class that each user has [U, C]."""
        examples, classes = self.labels.nonzero()
        num_users, num_classes = len(self.user_ids), len(self.classes)
        cells = np.bincount(self.owners(examples) * num_classes + classes, minlength=num_users * num_classes)
        return cells.reshape(num_users, num_classes)

    def pixels(self, examples: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the images of the examples [B, H, W, 3]."""
        return np.asarray(take_images(self.images, self.image_indices[examples]).cpu().numpy())

    def user_name(self, user: int) -> str:
        """Return the name of a user in the source, or else its id."""
        return str(self.user_ids[user] if self.user_names is None else self.user_names[user])

    def filter(self, mask: NDArray[np.bool_]) -> Population:
        """Return the view of the examples where the mask is true, and of the users who have any of them."""
        examples = np.flatnonzero(mask)
        counts = np.bincount(self.owners(examples), minlength=len(self.user_ids))
        present = counts > 0
        return replace(
            self._select(examples),
            offsets=_offsets(counts[present]),
            user_ids=self.user_ids[present],
            user_names=None if self.user_names is None else self.user_names[present],
        )

    def _select(self, examples: Ints) -> Population:
        """Return the population with the rows of these examples only; the users stay as they are."""
        columns = {
            name: column.take(examples)
            if isinstance(column, SingleLabels | MultiLabels)
            else np.asarray(column)[examples]
            for name, column in self.columns.items()
        }
        images = self.image_indices[examples]
        return replace(self, labels=self.labels.take(examples), image_indices=images, columns=columns)

    def split(self, name: str) -> Population:
        """Return the view of one split: train, val or test."""
        column = self.columns.get("split")
        if column is None:
            raise ValueError(f"this population has no split column: add one to select {name!r}")
        mask = np.asarray(column) == name
        if not mask.any():
            splits = ", ".join(np.unique(np.asarray(column)))
            raise ValueError(f"this population has no split {name!r}: choose {splits}")
        return self.filter(mask)

    def task(self, name: str) -> Population:
        """Return the same examples with another of their label columns."""
        labels = self.columns.get(name)
        if not isinstance(labels, SingleLabels | MultiLabels):
            known = [key for key, column in self.columns.items() if isinstance(column, SingleLabels | MultiLabels)]
            choices = f"choose {', '.join(known)}" if known else "leave the task out"
            raise ValueError(f"this population has no labels called {name!r}: {choices}")
        return replace(self, labels=labels)

    def pooled(self) -> Population:
        """Return all examples as those of one user, for centralized training."""
        return replace(
            self, offsets=np.array([0, len(self)]), user_ids=np.array([-1]), user_names=np.array(["everyone"])
        )


def caveats_of(populations: Iterable[Population | None]) -> tuple[str, ...]:
    """Return the caveats of several populations, each once."""
    return tuple(dict.fromkeys(caveat for p in populations if p is not None for caveat in p.caveats))


def with_caveats(text: str, caveats: Iterable[str]) -> str:
    """Return a name or a title, followed by what has to be said of its data."""
    return f"{text} ({CAVEAT_SEPARATOR.join(caveats)})" if tuple(caveats) else text


def _as_ids(values: ArrayLike, name: str) -> Ints:
    """Return class ids as a one-dimensional int64 array, without a copy if they are one."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return values
    array = _as_array(name, values)
    fix = "give class ids from 0: one per example in SingleLabels, one list per example in MultiLabels.from_lists"
    if array.ndim != 1:
        raise ValueError(f"{name} have shape {list(array.shape)}: {fix}")
    if len(array) and array.dtype.kind not in "iub":
        raise ValueError(f"{name} are {array.dtype}: {fix}")
    return array.astype(np.int64)


def _offsets(counts: ArrayLike) -> Ints:
    """Return where each group of a concatenation begins, and its end [N + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _as_array(name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name} has rows of several lengths: give one entry for each example") from error


def _as_column(name: str, column: ArrayLike | Labels) -> NDArray[Any] | Labels:
    if isinstance(column, SingleLabels | MultiLabels):
        return column
    array = _as_array(name, column)
    if array.ndim == 0:
        raise ValueError(f"{name} is one {type(column).__name__}, {column!r}: give one entry for each example")
    return array


def _check_images(images: Any) -> None:
    dtype, shape = getattr(images, "dtype", type(images).__name__), tuple(getattr(images, "shape", ()))
    if dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
        raise ValueError(f"images are {dtype} {shape}: give a uint8 array [number, height, width, 3]")
