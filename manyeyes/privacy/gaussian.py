"""The Gaussian mechanism: a bound that follows the norms of updates, and the source of the noise that hides them."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.state import DivergenceError
from manyeyes.privacy.accountant import update_noise

FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True)
class AdaptiveClip:
    """A bound that follows a quantile of the norms: C <- C exp(-learning_rate (b - quantile)) (Andrew et al. 2021).

    b, the fraction of clients with a norm of at most C, is noisy too, and takes a part of the noise multiplier.
    """

    target_quantile: float = 0.5
    learning_rate: float = 0.2
    clipped_count_stddev: float = 0.0  # 0: a twentieth of the cohort, or the noise multiplier if that is more

    def noise_multipliers(self, noise_multiplier: float, cohort_size: int) -> tuple[float, float]:
        """Return the noise multiplier of the sum, and the standard deviation of the noise on the clipped count."""
        stddev = self.clipped_count_stddev or max(cohort_size / 20, noise_multiplier)  # then the first grows by 15 %
        return update_noise(noise_multiplier, stddev), stddev

    def update(self, norm: float, unclipped_fraction: float) -> float:
        """Return the bound of the next round."""
        change = -self.learning_rate * (unclipped_fraction - self.target_quantile)
        if not math.log(FLOAT32.tiny) < math.log(norm) + change < math.log(FLOAT32.max):
            raise DivergenceError(
                "the clipping norm has left the range of float32: set privacy.clip_learning_rate or the noise lower"
            )
        return norm * math.exp(change)


class GaussianSource:
    """Standard normal numbers that follow from a secret seed, from which the seed does not follow.

    PyTorch's CPU generator takes 32 bits of a seed, so that whoever sees a sum could try all seeds and subtract the
    noise. Philox takes 128 bits here, and 64 bits on a GPU.
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
        """Return noise for the values that are sent; personal layers get none."""
        noise = stddev * self.sample_like(tensor)
        return noise if personal_mask is None else noise * ~personal_mask
