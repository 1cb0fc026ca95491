"""Softmax regression on the pixels, the simplest baseline."""

from torch import Tensor, nn

from manyeyes.core.registry import register


@register("model", "linear")
class Linear(nn.Module):
    """One linear layer on the flattened pixels, with torch's default initialization."""

    head = ("fc",)  # from the classifier on, as all heads

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * size * size, classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.fc(x_BCHW.flatten(1))
