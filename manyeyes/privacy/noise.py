"""Where noise comes from: normal numbers that follow from a secret, and from which the secret does not follow.

PyTorch's CPU generator takes 32 bits of a seed, so that whoever sees a sum could try them all and take its noise off.
Philox takes 128 here and 64 on a GPU.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class GaussianSource:
    """Standard normal numbers, one after another; the same for the same secret."""

    def __init__(self, secret: int) -> None:
        self._host = np.random.Generator(np.random.Philox(key=secret % 2**128))
        self._seed, self._device = secret % 2**64, dict[torch.device, torch.Generator]()

    def scalar(self) -> float:
        return float(self._host.standard_normal())

    def sample_like(self, tensor: Tensor) -> Tensor:
        """As many as a tensor has, where it is."""
        if not tensor.is_cuda:
            drawn = self._host.standard_normal(tuple(tensor.shape), np.float32)
            return torch.from_numpy(drawn).to(tensor.device, tensor.dtype)
        if tensor.device not in self._device:
            self._device[tensor.device] = torch.Generator(tensor.device).manual_seed(self._seed)
        chance = self._device[tensor.device]
        return torch.randn(tensor.shape, generator=chance, device=tensor.device, dtype=tensor.dtype)
