"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381), with torchvision's names, shapes and initialisation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.models.norms import Norm

# Expansion, channels, blocks and first stride of each stage: table 2 of the paper.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class InvertedResidual(nn.Module):
    """Widen, convolve each channel alone, narrow without a nonlinearity; with a way around where shapes allow."""

    def __init__(self, before: int, after: int, stride: int, expansion: int, norm: Norm) -> None:
        super().__init__()
        wide = before * expansion
        widen = [_conv(before, wide, 1, norm)] if expansion > 1 else []
        depthwise = _conv(wide, wide, 3, norm, stride=stride, groups=wide)
        self.conv = nn.Sequential(*widen, depthwise, nn.Conv2d(wide, after, 1, bias=False), norm(after))
        self.goes_around = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.goes_around else y


class MobileNetV2(nn.Module):
    """1280 features an image and a linear classifier, behind a linear `bottleneck` where one is wanted.

    Landmarks in Hsu et al. 2020 has a bottleneck of 64; 0 means none, as in torchvision.
    """

    architecture = "mobilenet_v2"

    channels_last = ("cpu", "cuda")  # where it is faster

    def __init__(self, classes: int, norm: Norm, bottleneck: int = 0) -> None:
        super().__init__()
        features: list[nn.Module] = [_conv(3, 32, 3, norm, stride=2)]
        before = 32
        for expansion, after, blocks, first_stride in STAGES:
            for block in range(blocks):
                features.append(InvertedResidual(before, after, 1 if block else first_stride, expansion, norm))
                before = after
        self.features = nn.Sequential(*features, _conv(before, 1280, 1, norm))
        self.bottleneck = nn.Linear(1280, bottleneck) if bottleneck else nn.Identity()
        # torchvision has dropout at index 0; we draw nothing behind the caller's back, and keep the index.
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(bottleneck or 1280, classes))
        self.head = ("classifier", *(["bottleneck"] if bottleneck else []), "features.18", "features.17", "features.16")
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out")
            elif isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, 0.0, 0.01)
                nn.init.zeros_(part.bias)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x_BCHW), 1).flatten(1)
        logits: Tensor = self.classifier(self.bottleneck(x))
        return logits


def _conv(before: int, after: int, kernel: int, norm: Norm, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, norm(after), nn.ReLU6(inplace=True))
