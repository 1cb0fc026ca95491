"""The Gaussian mechanism: the bound on the norm of every update, and the noise that hides it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyeyes.components.validation import require_at_least, require_fraction, require_positive
from manyeyes.core.state import DivergenceError
from manyeyes.privacy.accountant import update_noise

FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True)
class Clip:
    """A fixed bound on the norm of an update."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        require_positive("privacy.clipping_norm", self.norm)

    def noise_multipliers(self, noise_multiplier: float, cohort_size: int) -> tuple[float, float]:
        """Return the noise multiplier of the sum, and the standard deviation of the noise on the clipped count."""
        return noise_multiplier, 0.0


@dataclass(frozen=True)
class AdaptiveClip:
    """A bound that follows a quantile of the norms: C <- C exp(-learning_rate (b - quantile)) (Andrew et al. 2021).

    b, the fraction of clients with a norm of at most C, is noisy too, and takes a part of the noise multiplier.
    """

    norm: float = 0.1  # in the first round
    target_quantile: float = 0.5
    learning_rate: float = 0.2
    clipped_count_stddev: float = 0.0  # 0: a twentieth of the cohort, or the noise multiplier if that is more

    def __post_init__(self) -> None:
        require_positive("privacy.clipping_norm", self.norm)
        require_positive("privacy.target_quantile", self.target_quantile)  # at 0 the bound would shrink to 0
        require_fraction("privacy.target_quantile", self.target_quantile)
        require_positive("privacy.clip_learning_rate", self.learning_rate)
        require_at_least("privacy.clipped_count_stddev", self.clipped_count_stddev, 0)

    def noise_multipliers(self, noise_multiplier: float, cohort_size: int) -> tuple[float, float]:
        """Return the noise multiplier of the sum, and the standard deviation of the noise on the clipped count."""
        stddev = self.clipped_count_stddev or max(cohort_size / 20, noise_multiplier)  # then the first grows by 15 %
        return update_noise(noise_multiplier, stddev), stddev

    def update(self, norm: float, unclipped_fraction: float) -> float:
        """Return the bound of the next round."""
        change = -self.learning_rate * (unclipped_fraction - self.target_quantile)
        if not math.log(FLOAT32.tiny) < math.log(norm) + change < math.log(FLOAT32.max):
            raise DivergenceError(
                "the clipping norm has left the range of float32 (lower privacy.clip_learning_rate or the noise)"
            )
        return norm * math.exp(change)


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
