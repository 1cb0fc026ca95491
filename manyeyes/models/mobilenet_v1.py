"""MobileNet-v1 (Howard et al. 2017, arXiv:1704.04861, table 1)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.models.norms import Norm, norm_relu

# Channels after each of the 13 blocks, and its stride.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class DepthwiseSeparable(nn.Module):
    """A 3x3 convolution of each channel alone, then a 1x1 convolution across channels."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(before, before, 3, stride, padding=1, groups=before, bias=False)
        self.bn1 = norm(before)
        self.pointwise = nn.Conv2d(before, after, 1, bias=False)
        self.bn2 = norm(after)

    def forward(self, x: Tensor) -> Tensor:
        x = norm_relu(self.bn1, self.depthwise(x))
        return norm_relu(self.bn2, self.pointwise(x))


class MobileNetV1(nn.Module):
    """A 3x3 stem, `blocks.0` to `blocks.12`, the mean over the image and `fc`; torch's default initialisation.

    The initialisation is that of the FedPer baseline; its heads are `fc`, then one more of the last blocks each.
    """

    channels_last = ("cpu", "cuda")  # where it is faster
    head = ("fc", "blocks.12", "blocks.11", "blocks.10")

    def __init__(self, classes: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False)
        self.bn1 = norm(32)
        befores = (32, *(after for after, _ in BLOCKS))
        self.blocks = nn.Sequential(
            *(
                DepthwiseSeparable(before, after, stride, norm)
                for before, (after, stride) in zip(befores, BLOCKS, strict=False)
            )
        )
        self.fc = nn.Linear(1024, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = norm_relu(self.bn1, self.conv1(x_BCHW))
        x = self.blocks(x)
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits
