"""Preprocessing: random crops and flips of uint8 images for training, resizing for evaluation, normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from manyeyes.core.registry import check_options, checks_keywords, option

MAX_SIDE = 16_384  # pixels
DEFAULT_MEAN, DEFAULT_STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)  # without pretrained weights
NUM_WINDOWS = 10  # that are drawn for an image until one fits: torchvision's number


class ExpectedInput(Protocol):
    """The images that pretrained weights expect."""

    @property
    def size(self) -> int: ...
    @property
    def mean(self) -> tuple[float, float, float]: ...
    @property
    def std(self) -> tuple[float, float, float]: ...


@checks_keywords
@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of images; each example has its own random numbers, so that all engines see the same images."""

    crop: int | None = option(
        None,
        "pixels per side of the crop; 0: the image's size; null: that of pretrained weights, else 0",
        minimum=0,
        maximum=MAX_SIDE,
    )
    pad: int = option(0, "pixels of black border that are added before cropping", minimum=0, maximum=MAX_SIDE)
    flip_horizontal: bool = option(False, "flip half of the training images left to right")
    flip_vertical: bool = option(False, "flip half of the training images upside down")
    scale: tuple[float, float] | None = option(None, "range of the cropped fraction of the area, resized to crop")
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), "range of width / height of a crop that is resized")
    mean: tuple[float, float, float] | None = option(
        None, "subtracted mean of red, green and blue; null: that of pretrained weights, else [0.5,0.5,0.5]"
    )
    std: tuple[float, float, float] | None = option(
        None, "deviation of red, green and blue; null: that of pretrained weights, else [0.25,0.25,0.25]"
    )

    def __post_init__(self) -> None:
        check_options(self, "preprocess")
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"preprocess.scale is {self.scale}: set it to [minimum, maximum], above 0 and at most 1")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(f"preprocess.ratio is {self.ratio}: set it to [minimum, maximum], above 0")
        if not min(self.std or DEFAULT_STD) > 0:
            raise ValueError(f"preprocess.std is {self.std}: set it to three numbers above 0: red, green, blue")

    def for_weights(self, expected: ExpectedInput | None) -> Preprocess:
        """Return the preprocessing with what was not set as pretrained weights expect it, or with the defaults.

        Images are enlarged or reduced as a whole to the size of the weights' images, without a random crop.
        """
        if expected is None:
            return replace(self, crop=self.crop or 0, mean=self.mean or DEFAULT_MEAN, std=self.std or DEFAULT_STD)
        resized: dict[str, Any] = {}
        if self.crop is None:
            resized = {"crop": expected.size} | ({} if self.scale else {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)})
        return replace(self, mean=self.mean or expected.mean, std=self.std or expected.std, **resized)

    @property
    def num_uniforms(self) -> int:
        """The number of uniform random numbers that an example needs."""
        if self.scale is not None:
            return 4 + 2 * NUM_WINDOWS
        return 4 if self.crop or self.pad or self.flip_horizontal or self.flip_vertical else 0

    def is_random(self, height: int, width: int) -> bool:
        """Return whether training sees an image of this size in several ways."""
        if self.flip_horizontal or self.flip_vertical or self.pad:
            return True
        if self.scale is not None:
            return self.scale != (1.0, 1.0) or self.ratio != (1.0, 1.0)
        return bool(self.crop) and (height, width) != (self.crop, self.crop)

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of a model's input for images of this size."""
        return (self.crop, self.crop) if self.crop else (height, width)

    def check(self, height: int, width: int) -> None:
        """Raise ValueError if the crop does not fit into images of this size."""
        limit = min(height, width) + 2 * self.pad
        if self.scale is None and (self.crop or 0) > limit:
            fix = f"at most {limit} for images of {height} x {width} pixels with preprocess.pad={self.pad}"
            raise ValueError(f"preprocess.crop is {self.crop}: set it to {fix}, or set preprocess.scale")

    def augment(self, images_BHWC: Tensor, uniforms_BD: Tensor | None) -> Tensor:
        """Return a random crop with random flips of each image, normalized [B, C, h, w]."""
        if uniforms_BD is None:
            return self._normalize(images_BHWC)
        height, width = images_BHWC.shape[1:3]
        padded = F.pad(images_BHWC, (0, 0, self.pad, self.pad, self.pad, self.pad))
        top, left, horizontal, vertical = uniforms_BD[:, :4].unbind(1)
        if self.scale is None:
            rows, columns = self._crop_window(top, height), self._crop_window(left, width)
        else:
            start_B2, size_B2 = self._resized_window(uniforms_BD.double(), *padded.shape[1:3])
            rows = _sample_points(start_B2[:, 0], size_B2[:, 0], self.crop or height)
            columns = _sample_points(start_B2[:, 1], size_B2[:, 1], self.crop or width)
        rows = _flip(rows, vertical) if self.flip_vertical else rows
        columns = _flip(columns, horizontal) if self.flip_horizontal else columns
        select = _pixels if self.scale is None else _interpolate
        return self._normalize(select(padded, rows, columns))

    def evaluate(self, images_BHWC: Tensor) -> Tensor:
        """Return the full images, resized to the training size and normalized."""
        images = self._normalize(images_BHWC)
        if not self.crop or images.shape[-2:] == (self.crop, self.crop):
            return images
        return F.interpolate(images, (self.crop, self.crop), mode="bilinear", antialias=True)

    def _crop_window(self, uniforms_B: Tensor, length: int) -> Tensor:
        """Return the pixels of a crop along one side, for each image [B, h]."""
        size = self.crop or length
        first = (uniforms_B * (length + 2 * self.pad - size + 1)).floor().long()
        return first[:, None] + torch.arange(size, device=first.device)

    def _resized_window(self, uniforms_BD: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the top left corner and the size of each image's window [B, 2].

        Szegedy et al. 2015, with torchvision's details: area and log ratio are uniform; the first of ten windows that
        fits is placed at random; if none fits, the largest with an allowed ratio is placed in the center.
        """
        assert self.scale is not None, "called only with preprocess.scale"
        (min_scale, max_scale), (min_ratio, max_ratio) = self.scale, self.ratio
        areas, ratios = uniforms_BD[:, 4:].chunk(2, 1)
        areas = height * width * (min_scale + areas * (max_scale - min_scale))
        ratios = torch.exp(math.log(min_ratio) + ratios * (math.log(max_ratio) - math.log(min_ratio)))
        heights, widths = (areas / ratios).sqrt().round(), (areas * ratios).sqrt().round()
        heights = F.pad(heights, (0, 1), value=min(height, max(1, round(width / min_ratio))))
        widths = F.pad(widths, (0, 1), value=min(width, max(1, round(height * max_ratio))))
        fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
        window = fits.long().argmax(1)  # the first that fits; the last one always does
        size = torch.stack([heights, widths], 2)[torch.arange(len(window), device=window.device), window]
        room = _constant((height, width), size.device) - size
        start = torch.where((window == NUM_WINDOWS)[:, None], room / 2, uniforms_BD[:, :2] * (room + 1)).floor()
        return start, size

    def _normalize(self, images_BHWC: Tensor) -> Tensor:
        channels = images_BHWC.shape[3]  # a grey image has the first value
        mean, std = (
            _constant(values[:channels], images_BHWC.device)
            for values in (self.mean or DEFAULT_MEAN, self.std or DEFAULT_STD)
        )
        return ((images_BHWC.float() / 255 - mean) / std).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class FeatureDecoder:
    """Takes the place of a `Preprocess` where images are the bytes of features [B, 1, values, 4], computed before."""

    feature_shape: tuple[int, ...]
    num_uniforms: ClassVar[int] = 0

    def shape(self, height: int, width: int) -> tuple[int, int]:
        return 1, 1  # features have no pixels

    def augment(self, bytes_B1V4: Tensor, uniforms_BD: Tensor | None) -> Tensor:
        return self.evaluate(bytes_B1V4)

    def evaluate(self, bytes_B1V4: Tensor) -> Tensor:
        return bytes_B1V4.contiguous().view(torch.float32).reshape(len(bytes_B1V4), *self.feature_shape)


def _constant(values: Sequence[float], device: torch.device) -> Tensor:
    """Return values on a device without a copy from the host, which a CUDA graph could not capture."""
    return torch.cat([torch.full((1,), value, dtype=torch.float32, device=device) for value in values])


def _sample_points(start_B: Tensor, length_B: Tensor, size: int) -> Tensor:
    """Return the centers of `size` pixels over a window, in pixels of the image and inside the window [B, size]."""
    centers = (torch.arange(size, device=start_B.device) + 0.5) * (length_B / size)[:, None] - 0.5
    return start_B[:, None] + centers.clamp_min(0).minimum(length_B[:, None] - 1)


def _flip(points_BL: Tensor, uniforms_B: Tensor) -> Tensor:
    return torch.where((uniforms_B < 0.5)[:, None], points_BL.flip(1), points_BL)


def _pixels(images_BHWC: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    index = torch.arange(len(images_BHWC), device=images_BHWC.device)
    return images_BHWC[index[:, None, None], rows[:, :, None], columns[:, None, :]]


def _interpolate(images_BHWC: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Interpolate bilinearly between the four pixels around each point, without antialiasing."""
    up, down = rows.floor().long(), rows.ceil().long()
    left, right = columns.floor().long(), columns.ceil().long()
    x, y = (columns - left).float()[:, None, :, None], (rows - up).float()[:, :, None, None]
    above = torch.lerp(_pixels(images_BHWC, up, left).float(), _pixels(images_BHWC, up, right).float(), x)
    below = torch.lerp(_pixels(images_BHWC, down, left).float(), _pixels(images_BHWC, down, right).float(), x)
    return torch.lerp(above, below, y)
