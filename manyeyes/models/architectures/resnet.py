"""ResNet-18 and ResNet-34 (He et al. 2015, arXiv:1512.03385), with torchvision's names, shapes and initialization."""

import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.core.registry import register
from manyeyes.models.norms import Norm, NormName, norm_layer, norm_relu

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}  # of each stage
NORM_GROUPS = 32  # as in FLAIR's released code


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a residual connection."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = norm(out_channels)
        self.downsample: nn.Module | None = None
        if stride > 1 or in_channels != out_channels:
            shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, norm(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(norm_relu(self.bn1, self.conv1(x)))
        return norm_relu(self.bn2, y, residual=x if self.downsample is None else self.downsample(x))


class ResNet(nn.Module):
    """A 7x7 stem, four stages of basic blocks, the mean over the image and a linear classifier."""

    channels_last = ("cuda",)  # devices on which this memory format is faster

    def __init__(self, architecture: str, classes: int, norm: Norm) -> None:
        super().__init__()
        self.architecture = architecture
        blocks = BLOCKS[architecture]
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        self.layer1 = _stage(blocks[0], 64, 64, 1, norm)
        self.layer2 = _stage(blocks[1], 64, 128, 2, norm)
        self.layer3 = _stage(blocks[2], 128, 256, 2, norm)
        self.layer4 = _stage(blocks[3], 256, 512, 2, norm)
        self.fc = nn.Linear(512, classes)
        last_blocks = [f"layer{stage}.{block}" for stage in (3, 4) for block in range(blocks[stage - 1])]
        self.head = ("fc", *reversed(last_blocks[-3:]))  # 1 to 4 layers
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = F.max_pool2d(norm_relu(self.bn1, self.conv1(x_BCHW)), 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


@register("model", "resnet18")
def resnet18(classes: int, norm: NormName = "group") -> ResNet:
    return ResNet("resnet18", classes, norm_layer(norm, NORM_GROUPS))


@register("model", "resnet34")
def resnet34(classes: int, norm: NormName = "group") -> ResNet:
    return ResNet("resnet34", classes, norm_layer(norm, NORM_GROUPS))


def _stage(num_blocks: int, in_channels: int, out_channels: int, stride: int, norm: Norm) -> nn.Sequential:
    others = (BasicBlock(out_channels, out_channels, 1, norm) for _ in range(num_blocks - 1))
    return nn.Sequential(BasicBlock(in_channels, out_channels, stride, norm), *others)
