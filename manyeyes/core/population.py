"""Population: images, labels and the users who own them; the only view of data that algorithms have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manyeyes.core.from_dataset import read_dataset
from manyeyes.core.labels import Floats as Floats
from manyeyes.core.labels import Ints as Ints
from manyeyes.core.labels import Labels as Labels
from manyeyes.core.labels import MultiLabels as MultiLabels
from manyeyes.core.labels import SingleLabels as SingleLabels
from manyeyes.core.labels import as_array, offsets_of
from manyeyes.core.notebook import html_table

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SYNTHETIC = "synthetic images"  # the caveat of a population whose images were made by manyeyes
CAVEAT_SEPARATOR = "; "


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

    images: Any  # uint8 [N, H, W, 3], or 1 for grey, with a shape, a dtype and a length, read by `take_images`
    labels: Labels
    offsets: Ints
    user_ids: Ints  # the same in every view: random streams and client state are keyed by it
    image_indices: Ints
    columns: Mapping[str, NDArray[Any] | Labels] = field(default_factory=dict)  # one entry for each example
    user_names: NDArray[Any] | None = None  # of each user in the source
    caveats: tuple[str, ...] = ()  # caveats of results on these images: SYNTHETIC, "90 of 100 examples"

    @staticmethod
    def from_arrays(images: Any, labels: Labels, users: ArrayLike, **columns: ArrayLike | Labels) -> Population:
        """Make a population from the user of each image; examples are sorted by user.

        Parameters
        ----------
        columns
            Further entries of each example: a `split`, or labels of another task.
        """
        users = as_array("users", users)
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
            images, labels, offsets_of(counts), np.arange(len(names)), np.arange(len(users)), arrays, names
        )
        return unsorted._select(np.argsort(index, kind="stable"))

    @staticmethod
    def from_dataset(
        dataset: Any, user: Any, label: Any = None, *, image: Any = None, load: Any = None, **options: Any
    ) -> Population:
        """Make a population from a dataset of PyTorch or the Hugging Face hub, a data frame, or a mapping of arrays.

        Parameters
        ----------
        user, label, image
            The name of a column, the position in the items of a dataset, or one entry for each example. By default the
            image and the label have their usual names and positions. A label is a class or a list of classes.
        load
            What is called with an entry of `image` and returns an image: `manyeyes.read_image` for paths.
        size, channels
            Pixels per side to which images are resized (by default, all must have one size); 3, for which grey images
            are repeated, or 1.
        classes
            The names of the classes; by default the dataset's own, or those that occur.
        lazy
            Whether images are read each time they are used; by default if they take more than 256 MiB.
        options
            Further columns: a `split`, or labels of another task.
        """
        *arrays, columns = read_dataset(dataset, user, label, image=image, load=load, **options)
        return Population.from_arrays(*arrays, **columns)

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
        """Return the images of the examples [B, H, W, C]."""
        return np.asarray(take_images(self.images, self.image_indices[examples]).cpu().numpy())

    def rgb_pixels(self, examples: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the images of the examples [B, H, W, 3], to be shown."""
        pixels = self.pixels(examples)
        return np.broadcast_to(pixels, (*pixels.shape[:3], 3))

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
            offsets=offsets_of(counts[present]),
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


def fetch(population: Population, examples: Ints, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the images [B, H, W, 3] and the targets of the same examples."""
    import torch

    images = take_images(population.images, population.image_indices[examples], device)
    return images, torch.from_numpy(population.labels.targets(examples)).to(device)


def caveats_of(populations: Iterable[Population | None]) -> tuple[str, ...]:
    """Return the caveats of several populations, each once."""
    return tuple(dict.fromkeys(caveat for p in populations if p is not None for caveat in p.caveats))


def _as_column(name: str, column: ArrayLike | Labels) -> NDArray[Any] | Labels:
    if isinstance(column, SingleLabels | MultiLabels):
        return column
    array = as_array(name, column)
    if array.ndim == 0:
        raise ValueError(f"{name} is one {type(column).__name__}, {column!r}: give one entry for each example")
    return array


def _check_images(images: Any) -> None:
    dtype, shape = getattr(images, "dtype", type(images).__name__), tuple(getattr(images, "shape", ()))
    if dtype != np.uint8 or len(shape) != 4 or shape[3] not in (1, 3):
        raise ValueError(f"images are {dtype} {shape}: give a uint8 array [number, height, width, 3], or 1 for grey")
