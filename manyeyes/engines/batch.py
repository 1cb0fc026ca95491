"""From rows of a plan to tensors, and from outputs to losses: the one path that images and labels take together."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from manyeyes.core.population import Ints, Population
from manyeyes.engines.device_images import DeviceImages

EPS = 1e-12  # stands for a sum of weights that is 0: examples that count nothing then give no gradient


def fetch(population: Population, examples: Ints, device: torch.device) -> tuple[Tensor, Tensor]:
    """The images [B, H, W, 3] and the targets of the same examples."""
    if isinstance(population.images, DeviceImages):
        images = population.images.take(population.image_indices[examples])
    else:
        images = torch.from_numpy(population.pixels(examples))
    targets = torch.from_numpy(population.labels.targets(examples))
    return images.to(device), targets.to(device)


def losses(outputs_BC: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example [B]: cross-entropy, with several labels the mean binary one over the classes."""
    if targets.dim() == 1:
        return F.cross_entropy(outputs_BC, targets, reduction="none")
    return F.binary_cross_entropy_with_logits(outputs_BC, targets, reduction="none").mean(1)


def weighted_mean(losses_B: Tensor, weights_B: Tensor) -> Tensor:
    """sum(w l) / sum(w): Eq. 4 of Hsu et al. 2020, and the plain mean where all weights are 1."""
    return (losses_B * weights_B).sum() / weights_B.sum().clamp_min(EPS)
