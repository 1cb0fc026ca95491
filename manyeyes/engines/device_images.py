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
from manyeyes.engines.base import IMAGE_STORAGES

AUTO_MEMORY_FRACTION = 0.6  # of the free memory that `auto` fills with images: the rest is for training
LOAD_CHUNK_BYTES = 2**28  # that are on the host at a time while images are loaded


@dataclass(frozen=True, eq=False)
class DeviceImages:
    """Images as one uint8 tensor [N, H, W, 3]; they can be indexed as an array, too."""

    tensor: Tensor
    dtype = np.dtype(np.uint8)
    reads_from_disk = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        return self.take(np.arange(len(self))[rows]).cpu().numpy()

    def take(self, rows: Ints, device: torch.device | None = None) -> Tensor:
        """Return the images of these rows, by default where they are."""
        images = self.tensor[torch.from_numpy(rows).to(self.tensor.device)]
        return images if device is None else images.to(device)


def device_tensor(images: Any) -> Tensor | None:
    """Return all images as one tensor on the device; None where they are elsewhere."""
    return getattr(images, "tensor", None)


def place_images(populations: Sequence[Population], storage: str, device: torch.device) -> list[Population]:
    """Return the populations with their images on the `gpu`, or left on the `cpu`; `auto`: on a GPU, those that fit."""
    if storage not in IMAGE_STORAGES:
        raise ValueError(f"engine.image_storage is {storage!r}: choose {', '.join(IMAGE_STORAGES)}.")
    if storage == "cpu" or device.type != "cuda":  # a CPU's memory is the host's
        return list(populations)
    free_bytes, _ = torch.cuda.mem_get_info(device)
    sizes = [image_bytes(population) for population in populations]
    if storage == "gpu" and sum(sizes) > free_bytes:
        raise ValueError(
            f"engine.image_storage=gpu needs {sum(sizes) / 2**30:.1f} GiB for the images and {device} has "
            f"{free_bytes / 2**30:.1f} GiB free: choose auto or cpu."
        )
    budget, placed = free_bytes if storage == "gpu" else AUTO_MEMORY_FRACTION * free_bytes, []
    for population, size in zip(populations, sizes, strict=True):
        fits = size <= budget
        budget -= size if fits else 0
        placed.append(load(population, device) if fits else population)
    return placed


def image_bytes(population: Population) -> int:
    """Return the size of the population's images, each counted once."""
    return len(np.unique(population.image_indices)) * int(np.prod(population.image_shape))


def load(population: Population, device: torch.device, chunk_bytes: int = LOAD_CHUNK_BYTES) -> Population:
    """Return the population with its own images on the device, read in the order of the source, chunk by chunk."""
    rows, image_indices = np.unique(population.image_indices, return_inverse=True)
    tensor = torch.empty((len(rows), *population.image_shape), dtype=torch.uint8, device=device)
    step = max(1, chunk_bytes // int(np.prod(population.image_shape)))
    for first in range(0, len(rows), step):
        pixels = np.asarray(population.images[rows[first : first + step]])
        tensor[first : first + step] = torch.from_numpy(pixels)
    return replace(population, images=DeviceImages(tensor), image_indices=image_indices)
