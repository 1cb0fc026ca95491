"""LeNet: the small CIFAR network of Hsu et al. 2020 (arXiv:2003.08082, section 6.1)."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from manyeyes.core.registry import Bounds, check_value, register

Width = Annotated[int, "channels of the convolutions; 64 is the paper's"]


@register("model", "lenet")
class LeNet(nn.Module):
    """Two padded 5x5 convolutions, each before a 2x2 max-pool, then three linear layers.

    A `width` of 64 is the paper's: 64 channels, 384 and 192 units. It has torch's default initialization.
    """

    channels_last = ("cpu", "cuda")  # devices on which this memory format is faster
    head = ("fc3", "fc2", "fc1", "conv2")

    def __init__(self, classes: int, size: int, width: Width = 64) -> None:
        super().__init__()
        if size < 4:
            raise ValueError(f"model=lenet halves its images twice and got images of {size} px: give 4 or more")
        check_value("model.width", width, int, Bounds(minimum=1))
        self.conv1 = nn.Conv2d(3, width, 5, padding=2)
        self.conv2 = nn.Conv2d(width, width, 5, padding=2)
        self.fc1 = nn.Linear(width * (size // 4) ** 2, 6 * width)
        self.fc2 = nn.Linear(6 * width, 3 * width)
        self.fc3 = nn.Linear(3 * width, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = _conv_relu_pool(self.conv2, _conv_relu_pool(self.conv1, x_BCHW)).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def _conv_relu_pool(layer: nn.Conv2d, x_BCHW: Tensor) -> Tensor:
    """Convolve, pool, then add the bias and apply ReLU: the same result from a quarter of the additions."""
    assert layer.bias is not None, "LeNet's convolutions have a bias"
    pooled = F.max_pool2d(layer._conv_forward(x_BCHW, layer.weight, None), 2)
    return F.relu(pooled + layer.bias[:, None, None])
