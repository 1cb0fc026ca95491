"""Labels: one class or any number of classes for each example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


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
        return MultiLabels(offsets_of([len(row) for row in unique]), ids, classes)

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
        return replace(self, indptr=offsets_of(np.bincount(positions, minlength=num_examples)), indices=indices)

    def targets(self, examples: NDArray[Any]) -> Floats:
        """Return multi-hot rows [B, C], as a loss expects them."""
        targets_BC = np.zeros((len(examples), len(self.classes)), np.float32)
        targets_BC[self.nonzero(examples)] = 1
        return targets_BC

    def counts(self, examples: NDArray[Any] | slice = slice(None)) -> Ints:
        """Return in how many of the examples each class occurs [C]."""
        return np.bincount(self.nonzero(examples)[1], minlength=len(self.classes))


Labels = SingleLabels | MultiLabels


def make_labels(values: Any, classes: Sequence[str] | None = None) -> Labels:
    """Return labels from one class for each example, or from a list of classes; a class is a number or a name."""
    rows, is_multi = _as_rows(values)
    present = set(chain.from_iterable(rows))
    if all(isinstance(name, str) for name in present):
        rows, names = _number_names(rows, tuple(sorted(present) if classes is None else classes))
    else:
        names = tuple(map(str, range(int(max(present)) + 1) if classes is None else classes))
    return MultiLabels.from_lists(rows, names) if is_multi else SingleLabels(np.array([row[0] for row in rows]), names)


def _as_rows(values: Any) -> tuple[list[list[Any]], bool]:
    """Return a list of the classes of each example, and whether an example may have several."""
    if isinstance(values, np.ndarray) and values.ndim == 2:  # multi-hot
        return [np.flatnonzero(row).tolist() for row in values], True
    is_multi = len(values) > 0 and isinstance(values[0], list | tuple | np.ndarray) and np.ndim(values[0]) == 1
    return [list(value) if is_multi else [value] for value in values], is_multi


def _number_names(rows: list[list[Any]], classes: tuple[str, ...]) -> tuple[list[list[Any]], tuple[str, ...]]:
    """Return the number of each name in the classes, and the classes."""
    ids = {name: number for number, name in enumerate(classes)}
    if unknown := sorted({name for row in rows for name in row} - ids.keys()):
        raise ValueError(f"labels have {unknown[0]!r}, which is not one of the {len(classes)} classes: correct it")
    return [[ids[name] for name in row] for row in rows], classes


def _as_ids(values: ArrayLike, name: str) -> Ints:
    """Return class ids as a one-dimensional int64 array, without a copy if they are one."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return values
    array = as_array(name, values)
    fix = "give class ids from 0: one per example in SingleLabels, one list per example in MultiLabels.from_lists"
    if array.ndim != 1:
        raise ValueError(f"{name} have shape {list(array.shape)}: {fix}")
    if len(array) and array.dtype.kind not in "iub":
        raise ValueError(f"{name} are {array.dtype}: {fix}")
    return array.astype(np.int64)


def offsets_of(counts: ArrayLike) -> Ints:
    """Return where each group of a concatenation begins, and its end [N + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def as_array(name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of several lengths
        raise ValueError(f"{name} has rows of several lengths: give one entry for each example") from error
