"""Training losses: one value for each example, as pure tensor code that engines can vectorize, capture and compile.

Targets are class ids (int64 [B]) or, with several labels per image, multi-hot rows (float [B, C]). With several labels
every class is a binary problem of its own, and an example's loss is the mean over the classes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from manyeyes.core.algorithm import Algorithm, Loss
from manyeyes.core.population import Population
from manyeyes.core.registry import component, option
from manyeyes.core.state import RoundContext

EPS = 1e-12  # smallest base of the focal factor, whose slope is infinite at 0 for a gamma below 1, and sum of weights


@component("loss", "cross_entropy")
class CrossEntropy:
    """Cross-entropy of the softmax, for one label per image."""

    def __call__(self, outputs_BC: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs_BC, targets, reduction="none")

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        reason = "loss=cross_entropy needs one label per image and the data has several: use loss=binary_cross_entropy"
        return reason if population.labels.multi else None


@component("loss", "binary_cross_entropy")
class BinaryCrossEntropy:
    """Mean binary cross-entropy over the classes, for several labels per image."""

    def __call__(self, outputs_BC: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs_BC, targets, reduction="none").mean(1)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        reason = "loss=binary_cross_entropy needs several labels per image and the data has one: use loss=cross_entropy"
        return None if population.labels.multi else reason


@component("loss", "label_smoothing")
class LabelSmoothing:
    """Cross-entropy with smoothed targets (Szegedy et al. 2016): (1 - s) y + s / C for one label per image.

    With several labels per image each class is smoothed by itself: (1 - s) y + s / 2.
    """

    smoothing: float = option(0.1, "fraction of the target that is spread evenly over the classes", minimum=0, below=1)

    def __call__(self, outputs_BC: Tensor, targets: Tensor) -> Tensor:
        if targets.dim() == 1:
            return F.cross_entropy(outputs_BC, targets, reduction="none", label_smoothing=self.smoothing)
        targets = targets * (1 - self.smoothing) + self.smoothing / 2
        return F.binary_cross_entropy_with_logits(outputs_BC, targets, reduction="none").mean(1)


@component("loss", "focal")
class Focal:
    """Focal loss (Lin et al. 2017): cross-entropy times (1 - p)^gamma, where p is the probability of the true label.

    With several labels per image the factor is that of each class. The class weight alpha of the paper is left out:
    `example_weighting` weights classes.
    """

    gamma: float = option(2.0, "focus on hard examples; 0 is cross-entropy", minimum=0)

    def __call__(self, outputs_BC: Tensor, targets: Tensor) -> Tensor:
        is_single = targets.dim() == 1
        cross_entropy = F.cross_entropy if is_single else F.binary_cross_entropy_with_logits
        losses = cross_entropy(outputs_BC, targets, reduction="none")  # -log(p)
        focused = (-torch.expm1(-losses)).clamp_min(EPS) ** self.gamma * losses
        return focused if is_single else focused.mean(1)


def training_loss(context: RoundContext, population: Population) -> Loss:
    """Return the loss of a round: the algorithm's, or the default for the kind of labels."""
    return default_loss(population.labels.multi) if context.loss is None else context.loss


def default_loss(multi: bool) -> Loss:
    """Return the loss of an algorithm that names none."""
    return BinaryCrossEntropy() if multi else CrossEntropy()


def weighted_mean(losses_B: Tensor, weights_B: Tensor) -> Tensor:
    """Return sum(w l) / sum(w): Eq. 4 of Hsu et al. 2020, and the plain mean where all weights are 1.

    Examples that count nothing give no gradient.
    """
    return (losses_B * weights_B).sum() / weights_B.sum().clamp_min(EPS)
