"""From uint8 photographs to what a model sees: random crops and flips in training, resizing in evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

TRIES = 10  # windows that are drawn for an image until one fits: torchvision's number


@dataclass(frozen=True)
class Preprocess:
    """Each example is changed by random numbers of its own, so that an image looks the same on every engine."""

    crop: int = 0  # side of the crop; 0: the image's own size
    pad: int = 0  # black border added before cropping
    flip_horizontal: bool = False
    flip_vertical: bool = False
    scale: tuple[float, float] | None = None  # share of the area that is cropped and resized to `crop`; None: as it is
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height of what is resized
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.25, 0.25, 0.25)

    def __post_init__(self) -> None:
        for name, value in (("crop", self.crop), ("pad", self.pad)):
            if value < 0:
                raise ValueError(f"{name} is {value}: it must be at least 0 pixels")
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(
                f"scale is {self.scale}: give a least and a largest share of the area, above 0 and up to 1"
            )
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(f"ratio is {self.ratio}: give a least and a largest width / height, above 0")
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) != 3:
                raise ValueError(f"{name} has {len(numbers)} numbers: give three, for red, green and blue")
        if not min(self.std) > 0:
            raise ValueError(f"std is {self.std}: each channel's must be above 0")

    @property
    def num_uniforms(self) -> int:
        """How many random numbers an example needs."""
        if self.scale is not None:
            return 4 + 2 * TRIES
        return 4 if self.crop or self.pad or self.flip_horizontal or self.flip_vertical else 0

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Of what a model is shown of such images."""
        return (self.crop, self.crop) if self.crop else (height, width)

    def check(self, height: int, width: int) -> None:
        if self.scale is None and self.crop > min(height, width) + 2 * self.pad:
            raise ValueError(
                f"a crop of {self.crop} pixels does not fit into images of {height} x {width} + {self.pad}"
            )

    def augment(self, images_BHWC: Tensor, dice_BD: Tensor | None) -> Tensor:
        """A random crop and random flips of each image, normalised [B, C, h, w]."""
        if dice_BD is None:
            return self._normalise(images_BHWC)
        height, width = images_BHWC.shape[1:3]
        padded = F.pad(images_BHWC, (0, 0, self.pad, self.pad, self.pad, self.pad))
        top, left, across, down = dice_BD[:, :4].unbind(1)
        if self.scale is None:
            rows, columns = self._window(top, height), self._window(left, width)
        else:
            (first, high), (start, wide) = self._zoom(dice_BD.double(), *padded.shape[1:3])
            rows, columns = _spread(first, high, self.crop or height), _spread(start, wide, self.crop or width)
        rows = _mirrored(rows, down) if self.flip_vertical else rows
        columns = _mirrored(columns, across) if self.flip_horizontal else columns
        return self._normalise(_pixels(padded, rows, columns) if self.scale is None else _blend(padded, rows, columns))

    def evaluate(self, images_BHWC: Tensor) -> Tensor:
        """The whole image, resized to the size that training sees."""
        images = self._normalise(images_BHWC)
        if not self.crop or images.shape[-2:] == (self.crop, self.crop):
            return images
        return F.interpolate(images, (self.crop, self.crop), mode="bilinear", antialias=True)

    def _window(self, where: Tensor, length: int) -> Tensor:
        """The pixels that a crop takes along one side, for each image [B, h]."""
        size = self.crop or length
        first = (where * (length + 2 * self.pad - size + 1)).floor().long()
        return first[:, None] + torch.arange(size, device=where.device)

    def _zoom(self, dice_BD: Tensor, height: int, width: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The first pixel and the length of each image's window, along rows and along columns [B].

        Szegedy et al. 2015, with torchvision's details: area and log of the ratio uniform, the first of ten windows
        that fits, anywhere in the image; where none does, the largest of an allowed ratio, in the middle.
        """
        assert self.scale is not None
        (least, most), (narrow, broad) = self.scale, self.ratio
        areas, shapes = dice_BD[:, 4:].chunk(2, 1)
        areas = height * width * (least + areas * (most - least))
        shapes = torch.exp(math.log(narrow) + shapes * (math.log(broad) - math.log(narrow)))
        high, wide = (areas / shapes).sqrt().round(), (areas * shapes).sqrt().round()
        high = F.pad(high, (0, 1), value=min(height, max(1, round(width / narrow))))
        wide = F.pad(wide, (0, 1), value=min(width, max(1, round(height * broad))))
        fits = (high >= 1) & (high <= height) & (wide >= 1) & (wide <= width)
        chosen = fits.long().argmax(1)  # the first; the last always fits
        size = torch.stack([high, wide], 2)[torch.arange(len(chosen), device=chosen.device), chosen]
        room = _filled((height, width), size.device) - size
        first = torch.where((chosen == TRIES)[:, None], room / 2, dice_BD[:, :2] * (room + 1)).floor()
        return (first[:, 0], size[:, 0]), (first[:, 1], size[:, 1])

    def _normalise(self, images_BHWC: Tensor) -> Tensor:
        mean, std = (_filled(numbers, images_BHWC.device) for numbers in (self.mean, self.std))
        return ((images_BHWC.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def _filled(numbers: Sequence[float], device: torch.device) -> Tensor:
    """A few numbers on a device without a copy from the host, which a CUDA graph could not capture."""
    return torch.cat([torch.full((1,), number, dtype=torch.float32, device=device) for number in numbers])


def _spread(first: Tensor, length: Tensor, size: int) -> Tensor:
    """The centres of `size` pixels over a window, in pixels of the image and inside the window [B, size]."""
    centres = (torch.arange(size, device=first.device) + 0.5) * (length / size)[:, None] - 0.5
    return first[:, None] + centres.clamp_min(0).minimum(length[:, None] - 1)


def _mirrored(places_BL: Tensor, coin: Tensor) -> Tensor:
    return torch.where((coin < 0.5)[:, None], places_BL.flip(1), places_BL)


def _pixels(images_BHWC: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Each image's pixels at its own rows and columns."""
    index = torch.arange(len(images_BHWC), device=images_BHWC.device)
    return images_BHWC[index[:, None, None], rows[:, :, None], columns[:, None, :]]


def _blend(images_BHWC: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Between the four pixels around each place: bilinear, without antialiasing."""
    up, down = rows.floor().long(), rows.ceil().long()
    left, right = columns.floor().long(), columns.ceil().long()
    across, along = (columns - left).float()[:, None, :, None], (rows - up).float()[:, :, None, None]
    above = torch.lerp(_pixels(images_BHWC, up, left).float(), _pixels(images_BHWC, up, right).float(), across)
    below = torch.lerp(_pixels(images_BHWC, down, left).float(), _pixels(images_BHWC, down, right).float(), across)
    return torch.lerp(above, below, along)
