"""Kernels in Triton, imported where they can run and nowhere else: PyTorch for CPUs comes without it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def usable(images: Tensor) -> bool:
    return images.is_cuda and _installed()


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def side_by_side(images: Tensor) -> Tensor:
    """With an image's channels next to each other in memory, as the kernels want them."""
    return images.contiguous(memory_format=torch.channels_last)
