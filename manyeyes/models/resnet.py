"""ResNet-18 and ResNet-34 (He et al. 2015, arXiv:1512.03385), with torchvision's names, shapes and initialisation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.models.norms import Norm, norm_relu

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the way around them."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = norm(after)
        self.downsample: nn.Module | None = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(norm_relu(self.bn1, self.conv1(x)))
        return norm_relu(self.bn2, y, residual=x if self.downsample is None else self.downsample(x))


class ResNet(nn.Module):
    """A 7x7 stem, four stages of basic blocks, the mean over the image and a linear classifier."""

    channels_last = ("cuda",)  # where it is faster

    def __init__(self, architecture: str, classes: int, norm: Norm) -> None:
        super().__init__()
        self.architecture = architecture
        first, second, third, fourth = BLOCKS[architecture]
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        self.layer1 = _stage(first, 64, 64, 1, norm)
        self.layer2 = _stage(second, 64, 128, 2, norm)
        self.layer3 = _stage(third, 128, 256, 2, norm)
        self.layer4 = _stage(fourth, 256, 512, 2, norm)
        self.fc = nn.Linear(512, classes)
        before = [f"layer{stage}.{block}" for stage in (3, 4) for block in range(BLOCKS[architecture][stage - 1])]
        self.head = ("fc", *reversed(before[-3:]))  # 1 to 4 layers
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = norm_relu(self.bn1, self.conv1(x_BCHW))
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def _stage(blocks: int, before: int, after: int, stride: int, norm: Norm) -> nn.Sequential:
    rest = (BasicBlock(after, after, 1, norm) for _ in range(blocks - 1))
    return nn.Sequential(BasicBlock(before, after, stride, norm), *rest)
