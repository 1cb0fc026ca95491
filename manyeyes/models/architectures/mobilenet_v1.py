"""MobileNet-v1 (Howard et al. 2017, arXiv:1704.04861, table 1)."""

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
        x = norm_relu(self.bn1, self.depthwise(x))
        return norm_relu(self.bn2, self.pointwise(x))


class MobileNetV1(nn.Module):
    """A 3x3 stem, `blocks.0` to `blocks.12`, the mean over the image and `fc`.

    torch's default initialization is that of the FedPer baseline; each larger head adds one more of the last blocks.
    """

    channels_last = ("cpu", "cuda")  # devices on which this memory format is faster
    head = ("fc", "blocks.12", "blocks.11", "blocks.10")

    def __init__(self, classes: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False)
        self.bn1 = norm(32)
        channels = (32, *(out_channels for out_channels, _ in BLOCKS))
        self.blocks = nn.Sequential(
            *(
                DepthwiseSeparable(in_channels, out_channels, stride, norm)
                for in_channels, (out_channels, stride) in zip(channels, BLOCKS, strict=False)
            )
        )
        self.fc = nn.Linear(1024, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = norm_relu(self.bn1, self.conv1(x_BCHW))
        x = self.blocks(x)
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


@register("model", "mobilenet_v1")
def mobilenet_v1(classes: int, norm: NormName = "group") -> MobileNetV1:
    """Build MobileNet-v1; 8 norm groups as in Hsu et al.'s code, since 32 would leave groups of one channel."""
    return MobileNetV1(classes, norm_layer(norm, 8))
