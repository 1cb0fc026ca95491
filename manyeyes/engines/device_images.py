"""Images on the device: loaded once, so that a round copies none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.core.population import Ints, Population

IMAGE_STORAGES = ("auto", "device", "host")
SHARE = 0.6  # of the free memory that `auto` fills with images: the rest is for training
CHUNK = 2**28  # bytes that are on the host at a time while images are loaded


@dataclass(frozen=True, eq=False)
class DeviceImages:
    """Images as one uint8 tensor [N, H, W, 3]; also an array to whoever does not ask for tensors."""

    tensor: Tensor
    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        return self.take(np.arange(len(self))[rows]).cpu().numpy()

    def take(self, rows: Ints) -> Tensor:
        return self.tensor[torch.from_numpy(rows).to(self.tensor.device)]


def place_images(populations: Sequence[Population], place: str, device: torch.device) -> list[Population]:
    """The populations with their images on the `device`, or left on the `host`; `auto`: on a GPU, those that fit."""
    if place not in IMAGE_STORAGES:
        raise ValueError(f"resident is {place!r}: choose {', '.join(IMAGE_STORAGES)}")
    if place == "host" or device.type != "cuda":  # a CPU's memory is the host's
        return list(populations)
    free, _ = torch.cuda.mem_get_info(device)
    sizes = [image_bytes(population) for population in populations]
    if place == "device" and sum(sizes) > free:
        raise ValueError(
            f"resident is device and the images take {sum(sizes) / 2**30:.1f} GiB of {free / 2**30:.1f} that are free "
            f"on {device}: choose auto or host"
        )
    room, settled = free if place == "device" else SHARE * free, []
    for population, size in zip(populations, sizes, strict=True):
        fits = size <= room
        room -= size if fits else 0
        settled.append(load(population, device) if fits else population)
    return settled


def image_bytes(population: Population) -> int:
    """What the population's images take, each counted once."""
    return len(np.unique(population.image_indices)) * int(np.prod(population.image_shape))


def load(population: Population, device: torch.device, chunk: int = CHUNK) -> Population:
    """The population with its own images on the device, read in the order of the store and no two chunks at once."""
    rows, places = np.unique(population.image_indices, return_inverse=True)
    tensor = torch.empty((len(rows), *population.image_shape), dtype=torch.uint8, device=device)
    step = max(1, chunk // int(np.prod(population.image_shape)))
    for first in range(0, len(rows), step):
        pixels = np.asarray(population.images[rows[first : first + step]])
        tensor[first : first + step] = torch.from_numpy(pixels)
    return replace(population, images=DeviceImages(tensor), image_indices=places)
