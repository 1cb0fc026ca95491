"""The source of Gaussian noise."""

import numpy as np
import torch
from torch import Tensor


class GaussianSource:
    """Standard normal numbers from a secret seed, which cannot be computed from them.

    PyTorch's CPU generator uses 32 bits of a seed, so an attacker who sees a sum could try all seeds and subtract the
    noise. Philox uses 128 bits here, and 64 bits on a GPU.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed % 2**64
        self._host_rng = np.random.Generator(np.random.Philox(key=seed % 2**128))
        self._device_rngs: dict[torch.device, torch.Generator] = {}

    def scalar(self) -> float:
        """Return the next number."""
        return float(self._host_rng.standard_normal())

    def sample_like(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the same shape, type and device."""
        if not tensor.is_cuda:
            sample = self._host_rng.standard_normal(tuple(tensor.shape), np.float32)
            return torch.from_numpy(sample).to(tensor.device, tensor.dtype)
        device = tensor.device
        if device not in self._device_rngs:
            self._device_rngs[device] = torch.Generator(device).manual_seed(self._seed)
        return torch.randn(tensor.shape, generator=self._device_rngs[device], device=device, dtype=tensor.dtype)

    def noise_like(self, tensor: Tensor, stddev: float, personal_mask: Tensor | None) -> Tensor:
        """Return noise for the shared values; personal layers get none."""
        noise = stddev * self.sample_like(tensor)
        return noise if personal_mask is None else noise * ~personal_mask
