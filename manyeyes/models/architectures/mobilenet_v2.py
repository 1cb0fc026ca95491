"""MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381), with torchvision's names, shapes and initialization."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.core.registry import Bounds, check_value, register
from manyeyes.models.norms import Norm, NormName, norm_layer

# Expansion, channels, blocks and first stride of each stage: table 2 of the paper.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

# Indices of layers in a block whose convolutions, norms and activations are one flat list, as in earlier code.
FIRST_FLAT_INDICES = {"0": "0.0", "1": "0.1", "3": "1", "4": "2"}  # of the block that does not widen
FLAT_INDICES = {"0": "0.0", "1": "0.1", "3": "1.0", "4": "1.1", "6": "2", "7": "3"}

Bottleneck = Annotated[int, "units of a linear layer before the classifier; 0: none"]


class InvertedResidual(nn.Module):
    """A widening, a depthwise and a narrowing linear convolution, with a residual connection where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int, norm: Norm) -> None:
        super().__init__()
        hidden = in_channels * expansion
        widen = [_conv(in_channels, hidden, 1, norm)] if expansion > 1 else []
        depthwise = _conv(hidden, hidden, 3, norm, stride=stride, groups=hidden)
        self.conv = nn.Sequential(*widen, depthwise, nn.Conv2d(hidden, out_channels, 1, bias=False), norm(out_channels))
        self.use_residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_residual else self.conv(x)


@register("model", "mobilenet_v2")
class MobileNetV2(nn.Module):
    """1280 features per image and a linear classifier, after a linear `bottleneck` unless it is 0.

    Landmarks in Hsu et al. 2020 has a bottleneck of 64; torchvision has none. Norms have 8 groups as in their code.
    """

    architecture = "mobilenet_v2"
    channels_last = ("cpu", "cuda")  # devices on which this memory format is faster

    def __init__(self, classes: int, norm: NormName = "group", bottleneck: Bottleneck = 0) -> None:
        super().__init__()
        check_value("model.bottleneck", bottleneck, int, Bounds(minimum=0))
        make_norm = norm_layer(norm, 8)
        features: list[nn.Module] = [_conv(3, 32, 3, make_norm, stride=2)]
        in_channels = 32
        for expansion, out_channels, num_blocks, first_stride in STAGES:
            for block in range(num_blocks):
                stride = 1 if block else first_stride
                features.append(InvertedResidual(in_channels, out_channels, stride, expansion, make_norm))
                in_channels = out_channels
        self.features = nn.Sequential(*features, _conv(in_channels, 1280, 1, make_norm))
        self.bottleneck = nn.Linear(1280, bottleneck) if bottleneck else nn.Identity()
        # torchvision has dropout at index 0; this model has no randomness, and keeps the index.
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(bottleneck or 1280, classes))
        self.head = ("classifier", *(["bottleneck"] if bottleneck else []), "features.18", "features.17", "features.16")
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, 0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x_BCHW), 1).flatten(1)
        return self.classifier(self.bottleneck(x))

    @staticmethod
    def convert_weights(state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights with this model's names, also those of a model whose blocks are flat lists of layers."""
        if "features.1.conv.0.weight" not in state:
            return state
        return {_nested_name(key): value for key, value in state.items()}


def _nested_name(key: str) -> str:
    parts = key.split(".")
    if parts[2] != "conv":
        return key
    parts[3] = (FIRST_FLAT_INDICES if parts[1] == "1" else FLAT_INDICES)[parts[3]]
    return ".".join(parts)


def _conv(inputs: int, outputs: int, kernel_size: int, norm: Norm, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel_size, stride, kernel_size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, norm(outputs), nn.ReLU6(inplace=True))
