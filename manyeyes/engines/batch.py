"""From example indices of a plan to tensors: the one path that images and labels take together."""

from __future__ import annotations

import torch
from torch import Tensor

from manyeyes.components.losses import default_loss
from manyeyes.core.algorithm import Loss
from manyeyes.core.population import Ints, Population, as_image_source
from manyeyes.core.state import RoundContext

EPS = 1e-12  # stands for a sum of weights that is 0: examples that count nothing then give no gradient


def fetch(population: Population, examples: Ints, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the images [B, H, W, 3] and the targets of the same examples."""
    images = as_image_source(population.images).take(population.image_indices[examples], device)
    return images, torch.from_numpy(population.labels.targets(examples)).to(device)


def training_loss(context: RoundContext, population: Population) -> Loss:
    """Return the loss of a round: the algorithm's, or the default for the kind of labels."""
    return default_loss(population.labels.multi) if context.loss is None else context.loss


def weighted_mean(losses_B: Tensor, weights_B: Tensor) -> Tensor:
    """Return sum(w l) / sum(w): Eq. 4 of Hsu et al. 2020, and the plain mean where all weights are 1."""
    return (losses_B * weights_B).sum() / weights_B.sum().clamp_min(EPS)
