"""Kernels in Triton, which are imported only where they can run: PyTorch for CPUs comes without Triton."""

import sys
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def can_run_on(images: Tensor) -> bool:
    return images.is_cuda and triton_works()


@cache
def triton_works() -> bool:
    """Return whether a kernel runs on this machine: Triton also needs a C compiler."""
    if find_spec("triton") is None:
        return False
    try:
        from manyeyes.models.fast.kernels.group_norm import normalize

        x, weight = to_channels_last(torch.ones(1, 16, 2, 2, device="cuda")), torch.ones(16, device="cuda")
        normalize(x, weight, weight, None, 2, 1e-5, 0.0, torch.inf)
    except Exception as error:  # whatever is missing, PyTorch's layers work
        reason = str(error).strip().splitlines() or [type(error).__name__]
        print(f"Triton does not work here, so some layers are slower: {reason[0]}", file=sys.stderr)
        return False
    return True


def to_channels_last(images: Tensor) -> Tensor:
    """Return images with the channels of a pixel next to each other in memory, as the kernels expect them."""
    return images.contiguous(memory_format=torch.channels_last)
