"""From uint8 photographs to what a model sees: random crops and flips in training, resizing in evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augment:
    """Each example is changed by four random numbers of its own, so that an image looks the same on every engine."""

    crop: int = 0  # side of the crop; 0: the image's own size
    pad: int = 0  # black border added before cropping
    flip_horizontal: bool = False
    flip_vertical: bool = False
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.25, 0.25, 0.25)

    def __post_init__(self) -> None:
        for name, value in (("crop", self.crop), ("pad", self.pad)):
            if value < 0:
                raise ValueError(f"{name} is {value}: it must be at least 0 pixels")
        if not min(self.std) > 0:
            raise ValueError(f"std is {self.std}: each channel's must be above 0")

    @property
    def dice(self) -> int:
        """How many random numbers an example needs."""
        return 4 if self.crop or self.pad or self.flip_horizontal or self.flip_vertical else 0

    def check(self, height: int, width: int) -> None:
        if self.crop > min(height, width) + 2 * self.pad:
            raise ValueError(
                f"a crop of {self.crop} pixels does not fit into images of {height} x {width} + {self.pad}"
            )

    def train(self, images_BHWC: Tensor, dice_BD: Tensor | None) -> Tensor:
        """A random crop and random flips of each image, normalised [B, C, h, w]."""
        if dice_BD is None:
            return self._normalise(images_BHWC)
        batch, height, width, _ = images_BHWC.shape
        top, left, across, down = dice_BD.unbind(1)
        rows = self._window(top, height, self.flip_vertical, down)
        columns = self._window(left, width, self.flip_horizontal, across)
        padded = F.pad(images_BHWC, (0, 0, self.pad, self.pad, self.pad, self.pad))
        index = torch.arange(batch, device=images_BHWC.device)
        return self._normalise(padded[index[:, None, None], rows[:, :, None], columns[:, None, :]])

    def evaluate(self, images_BHWC: Tensor) -> Tensor:
        """The whole image, resized to the size that training sees."""
        images = self._normalise(images_BHWC)
        if not self.crop or images.shape[-2:] == (self.crop, self.crop):
            return images
        return F.interpolate(images, (self.crop, self.crop), mode="bilinear", antialias=True)

    def _window(self, where: Tensor, length: int, flips: bool, coin: Tensor) -> Tensor:
        """The pixels that a crop takes along one side, for each image [B, h]."""
        size = self.crop or length
        first = (where * (length + 2 * self.pad - size + 1)).floor().long()
        pixels = first[:, None] + torch.arange(size, device=where.device)
        return torch.where((coin < 0.5)[:, None], pixels.flip(1), pixels) if flips else pixels

    def _normalise(self, images_BHWC: Tensor) -> Tensor:
        mean = torch.tensor(self.mean, device=images_BHWC.device)
        std = torch.tensor(self.std, device=images_BHWC.device)
        return ((images_BHWC.float() / 255 - mean) / std).permute(0, 3, 1, 2)
