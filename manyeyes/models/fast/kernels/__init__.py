"""Kernels in Triton, imported where they can run and nowhere else: PyTorch for CPUs comes without it."""

import sys
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def usable(images: Tensor) -> bool:
    return images.is_cuda and _work()


@cache
def _work() -> bool:
    """Whether a kernel runs on this machine: Triton needs a compiler for C, too."""
    if find_spec("triton") is None:
        return False
    try:
        from manyeyes.models.fast.kernels.group_norm import normalise

        x, weight = to_channels_last(torch.ones(1, 16, 2, 2, device="cuda")), torch.ones(16, device="cuda")
        normalise(x, weight, weight, None, 2, 1e-5, 0.0, torch.inf)
    except Exception as error:  # whatever is missing, the work can go on
        said = str(error).strip().splitlines() or [type(error).__name__]
        print(f"Triton does not work here, so some layers are slower: {said[0]}", file=sys.stderr)
        return False
    return True


def to_channels_last(images: Tensor) -> Tensor:
    """With an image's channels next to each other in memory, as the kernels want them."""
    return images.contiguous(memory_format=torch.channels_last)
