"""EfficientNet-Lite0: EfficientNet-B0 (Tan and Le 2019, arXiv:1905.11946) with ReLU6 and without squeeze-and-excitation.

Names, shapes and padding are those of timm's `tf_efficientnet_lite0`, whose weights are Google's.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.core.registry import register
from manyeyes.models.norms import FrozenBatchNorm2d, Norm, NormName, norm_layer

# Expansion, channels, blocks, first stride and kernel size of each stage: table 1 of the paper.
STAGES = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
NORM_GROUPS = 8  # as in MobileNetV2
BATCH_NORM_EPS, BATCH_NORM_MOMENTUM = 1e-3, 0.01  # TensorFlow's

# Names of the reference implementation's layers in this one; in the first stage, blocks do not widen.
OUTER_NAMES = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
FIRST_NAMES = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
BLOCK_NAMES = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
    "_project_conv": "conv_pwl", "_bn2": "bn3",
}  # fmt: skip


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding "same": with a stride, an odd pixel of padding is at the right and bottom."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        height, width = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:])
        return super().forward(F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2)))


class SeparableBlock(nn.Module):
    """A depthwise and a linear convolution, with a residual connection where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, kernel: int, norm: Norm) -> None:
        super().__init__()
        self.conv_dw, self.bn1 = _conv(in_channels, in_channels, kernel, stride, depthwise=True), norm(in_channels)
        self.conv_pw, self.bn2 = _conv(in_channels, out_channels, 1), norm(out_channels)
        self.use_residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv_pw(F.relu6(self.bn1(self.conv_dw(x)))))
        return x + y if self.use_residual else y


class InvertedResidual(nn.Module):
    """A widening, a depthwise and a narrowing linear convolution, with a residual connection where shapes allow."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, kernel: int, expansion: int, norm: Norm
    ) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self.conv_pw, self.bn1 = _conv(in_channels, hidden, 1), norm(hidden)
        self.conv_dw, self.bn2 = _conv(hidden, hidden, kernel, stride, depthwise=True), norm(hidden)
        self.conv_pwl, self.bn3 = _conv(hidden, out_channels, 1), norm(out_channels)
        self.use_residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.bn2(self.conv_dw(F.relu6(self.bn1(self.conv_pw(x))))))
        y = self.bn3(self.conv_pwl(y))
        return x + y if self.use_residual else y


@register("model", "efficientnet_lite0")
class EfficientNetLite0(nn.Module):
    """1280 features per image and a linear classifier."""

    architecture = "efficientnet_lite0"
    channels_last = ("cpu", "cuda")  # devices on which this memory format is faster

    def __init__(self, classes: int, norm: NormName = "group") -> None:
        super().__init__()
        make_norm = norm_layer(norm, NORM_GROUPS)
        self.conv_stem, self.bn1 = _conv(3, 32, 3, stride=2), make_norm(32)
        stages, in_channels = [], 32
        for expansion, out_channels, num_blocks, first_stride, kernel in STAGES:
            blocks: list[nn.Module] = []
            for stride in (first_stride, *[1] * (num_blocks - 1)):
                if expansion == 1:
                    blocks.append(SeparableBlock(in_channels, out_channels, stride, kernel, make_norm))
                else:
                    blocks.append(InvertedResidual(in_channels, out_channels, stride, kernel, expansion, make_norm))
                in_channels = out_channels
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head, self.bn2 = _conv(in_channels, 1280, 1), make_norm(1280)
        self.classifier = nn.Linear(1280, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, 0.01)
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.BatchNorm2d | FrozenBatchNorm2d):
                layer.eps = BATCH_NORM_EPS
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = BATCH_NORM_MOMENTUM

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = self.blocks(F.relu6(self.bn1(self.conv_stem(x_BCHW))))
        x = F.relu6(self.bn2(self.conv_head(x)))
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))

    @staticmethod
    def convert_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights with this model's names, also those of the reference implementation."""
        block_positions = [
            (stage, index) for stage, (_, _, blocks, _, _) in enumerate(STAGES) for index in range(blocks)
        ]
        return {_own_name(key, block_positions): value for key, value in state.items()}


def _own_name(key: str, block_positions: list[tuple[int, int]]) -> str:
    first, *rest = key.split(".")
    if first != "_blocks":
        return ".".join([OUTER_NAMES.get(first, first), *rest])
    stage, index = block_positions[int(rest[0])]
    return f"blocks.{stage}.{index}.{(BLOCK_NAMES if stage else FIRST_NAMES)[rest[1]]}.{rest[2]}"


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, depthwise: bool = False) -> nn.Conv2d:
    groups = inputs if depthwise else 1
    if stride > 1:
        return SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
