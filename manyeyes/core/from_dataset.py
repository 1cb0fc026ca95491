"""Populations from what other libraries call a dataset: PyTorch's, one of the Hugging Face hub, a data frame, arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.labels import Ints, Labels, MultiLabels, SingleLabels, make_labels

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Column = Any  # a name of a column or a position in an item, or one entry for each example
MAX_BYTES_IN_MEMORY = 2**28  # of images that are read at once where `lazy` is not given
IMAGE_NAMES, LABEL_NAMES = ("image", "img", "path", "file"), ("label", "labels", "target", "class")
LUMINANCE = np.array([0.299, 0.587, 0.114])  # of red, green and blue (ITU-R 601)


@dataclass(frozen=True, eq=False)
class LazyImages:
    """Images that are read and converted to pixels each time they are used."""

    read: Callable[[int], Any]  # the image of a row, of any library's type
    shape: tuple[int, ...]
    dtype = np.dtype(np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: Ints, device: torch.device | None = None) -> Tensor:
        """Return the images of some rows."""
        import torch

        return torch.from_numpy(self.pixels(rows)).to(device)

    def pixels(self, rows: Ints) -> NDArray[np.uint8]:
        images = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for image, row in zip(images, rows.tolist(), strict=True):
            pixels = self.read(row)
            if pixels.shape != image.shape:
                sizes = " and others ".join(f"{height} x {width}" for height, width, _ in (pixels.shape, image.shape))
                raise ValueError(f"image {row} of the dataset has {sizes} pixels: give from_dataset a size for all")
            image[:] = pixels
        return images


def read_dataset(
    dataset: Any,
    user: Column,
    label: Column = None,
    *,
    image: Column = None,
    load: Callable[[Any], Any] | None = None,
    size: int | None = None,
    channels: int = 3,
    classes: Sequence[str] | None = None,
    lazy: bool | None = None,
    **columns: Column,
) -> tuple[Any, Labels, Any, dict[str, Any]]:
    """Return the images, labels, users and further columns; `Population.from_dataset` describes the arguments."""
    if channels not in (1, 3):
        raise ValueError(f"channels is {channels}: give 3, or 1 for grey images")
    user, label = _values(dataset, "user", user), _labels(dataset, label, classes)
    further = {name: _values(dataset, name, column) for name, column in columns.items()}
    images = _images(dataset, image, load, size, channels)
    if isinstance(images, LazyImages):
        is_lazy = np.prod(images.shape) > MAX_BYTES_IN_MEMORY if lazy is None else lazy
        images = images if is_lazy else images.pixels(np.arange(len(images)))
    return images, label, user, further


def as_pixels(value: Any, channels: int = 3, size: int | None = None) -> NDArray[np.uint8]:
    """Return an image of any library's type as uint8 [H, W, channels]: a grey one is repeated, a color one averaged."""
    if isinstance(value, str | bytes):
        raise ValueError(f"an image of the dataset is {str(value)[:80]!r}: give load=manyeyes.read_image to read files")
    if hasattr(value, "convert"):  # of Pillow
        value = value.convert("RGB" if channels == 3 else "L")
    pixels = _as_uint8(np.asarray(value))
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3):
        pixels = pixels.transpose(1, 2, 0)  # [C, H, W], as PyTorch has images
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise ValueError(f"an image of the dataset has shape {list(pixels.shape)}: give [H, W], [H, W, 3] or [3, H, W]")
    if pixels.shape[2] == 3 and channels == 1:
        pixels = np.round(pixels @ LUMINANCE).astype(np.uint8)[..., None]
    pixels = np.repeat(pixels, channels // pixels.shape[2], axis=2)
    return pixels if size is None or pixels.shape[:2] == (size, size) else _resize(pixels, size)


def _as_uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "f" and values.size and values.min() >= 0 and values.max() <= 1:
        return np.round(255 * values).astype(np.uint8)
    limits = f" from {values.min():g} to {values.max():g}" if values.dtype.kind in "fiu" and values.size else ""
    fix = "give uint8, or floats from 0 to 1, without normalization, which training does itself"
    raise ValueError(f"an image of the dataset has {values.dtype} values{limits}: {fix}")


def _resize(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    import torch

    image = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None].float()
    resized = torch.nn.functional.interpolate(image, (size, size), mode="bilinear", antialias=True)
    return resized[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy()


def _images(dataset: Any, image: Column, load: Callable[[Any], Any] | None, size: int | None, channels: int) -> Any:
    """Return the images as an array, if they are one, or as what reads each of them."""
    if isinstance(dataset, np.ndarray) and dataset.dtype.names is None and image is None:
        image = dataset
    if image is None and (names := column_names(dataset)):
        image = _usual_name(names, "image", IMAGE_NAMES)
    if _is_in_items(dataset, image):
        read, count = partial(_read_item, dataset, image), len(dataset)
    else:
        values = _values(dataset, "image", image) if isinstance(image, str) else image
        read, count = values.__getitem__, len(values)
        is_done = isinstance(values, np.ndarray) and values.dtype == np.uint8 and not (load or size)
        if is_done and values.ndim == 4 and values.shape[3] == channels:
            return values
    if not count:
        raise ValueError("the dataset has no examples: give one with images")
    as_loaded = partial(_read_pixels, read, load, channels, size)
    return LazyImages(as_loaded, (count, *as_loaded(0).shape))


def _is_in_items(dataset: Any, image: Column) -> bool:
    """Return whether an image is read with its item, and not from a column of all images."""
    if isinstance(image, str):
        return not column_names(dataset) or hasattr(dataset, "features")  # of the hub: decoded with their item
    return image is None or isinstance(image, int)


def _read_item(dataset: Any, image: Column, row: int) -> Any:
    """Return the image of an item: an entry of a mapping, or by default the first of a tuple."""
    item = dataset[row]
    if image is None:
        image = _usual_name(tuple(item), "image", IMAGE_NAMES) if isinstance(item, Mapping) else 0
    return item[image]


def _read_pixels(
    read: Callable[[int], Any], load: Callable[[Any], Any] | None, channels: int, size: int | None, row: int
) -> NDArray[np.uint8]:
    value = read(row)
    return as_pixels(load(value) if load else value, channels, size)


def column_names(dataset: Any) -> tuple[str, ...]:
    """Return the names of the columns of a table; a dataset of items has none."""
    if isinstance(dataset, np.ndarray):
        return tuple(dataset.dtype.names or ())
    if isinstance(dataset, Mapping):
        return tuple(dataset)
    names: Any = getattr(dataset, "column_names", None)
    return tuple(map(str, getattr(dataset, "columns", ()) if names is None else names))


def _usual_name(names: Sequence[str], argument: str, usual: Sequence[str]) -> str:
    if matches := [name for name in usual if name in names]:
        return matches[0]
    raise ValueError(f"the dataset has the columns {', '.join(names)}: name that of the {argument} as {argument}=...")


def _values(dataset: Any, argument: str, column: Column) -> Any:
    """Return one entry for each example: of a column, of a position in the items, or those that are given."""
    if not isinstance(column, str | int):
        return column
    names = column_names(dataset)
    if names and column not in names:
        raise ValueError(f"the dataset has no column {column!r} for {argument}: choose from {', '.join(names)}")
    if not names:
        return np.array([dataset[row][column] for row in range(len(dataset))])
    values = dataset[column]
    if hasattr(values, "to_numpy"):
        return values.to_numpy()
    return values if isinstance(values, np.ndarray) else list(values)


def _labels(dataset: Any, label: Column, classes: Sequence[str] | None) -> Labels:
    """Return the labels, with the classes that are given, or the dataset's, or those that occur."""
    if isinstance(label, SingleLabels | MultiLabels):
        return label
    names = column_names(dataset)
    if label is None and names:
        label = _usual_name(names, "label", LABEL_NAMES)
    elif label is None:
        label = getattr(dataset, "targets", 1)  # torchvision's name; else the second entry of an item
    values = _values(dataset, "label", label)
    if classes is None:
        feature = getattr(dataset, "features", {}).get(label) if isinstance(label, str) else None
        classes = getattr(getattr(feature, "feature", feature), "names", None) or getattr(dataset, "classes", None)
    return make_labels(values, classes)
