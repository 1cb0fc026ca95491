"""MobileNet-v1 (Howard et al. 2017, arXiv:1704.04861, table 1)."""

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.core.registry import register
from manyeyes.models.norms import Norm, NormName, norm_layer, norm_relu

# Output channels and stride of each of the 13 blocks.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class DepthwiseSeparable(nn.Module):
    """A 3x3 depthwise convolution, then a 1x1 convolution across channels."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(in_channels, in_channels, 3, stride, padding=1, groups=in_channels, bias=False)
        self.bn1 = norm(in_channels)
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.bn2 = norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return norm_relu(self.bn2, self.pointwise(norm_relu(self.bn1, self.depthwise(x))))


@register("model", "mobilenet_v1")
class MobileNetV1(nn.Module):
    """A 3x3 stem, `blocks.0` to `blocks.12`, the mean over the image and `fc`.

    torch's default initialization is that of the FedPer baseline; each larger head adds one more of the last blocks.
    Norms have 8 groups as in Hsu et al.'s code, since 32 would leave groups of one channel.
    """

    channels_last = ("cpu", "cuda")  # devices on which this memory format is faster
    head = ("fc", "blocks.12", "blocks.11", "blocks.10")

    def __init__(self, classes: int, norm: NormName = "group") -> None:
        super().__init__()
        make_norm = norm_layer(norm, 8)
        self.conv1 = nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False)
        self.bn1 = make_norm(32)
        sizes = pairwise(((32, 2), *BLOCKS))
        blocks = (DepthwiseSeparable(before, channels, stride, make_norm) for (before, _), (channels, stride) in sizes)
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(1024, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = self.blocks(norm_relu(self.bn1, self.conv1(x_BCHW)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
