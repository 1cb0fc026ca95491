"""First convolutions as matrix products of patches: a GPU's own kernels want more channels than the three of images."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn import functional as F

FEW = 4  # channels
STRIDE = 8  # numbers that a row of a matrix should be a multiple of, for the tensor cores


class PatchConv2d(nn.Conv2d):
    """A Conv2d that gathers the patch under each output pixel and multiplies all of them by the weights at once."""

    def forward(self, images: Tensor) -> Tensor:
        (high, wide), (down, across) = self.kernel_size, self.stride
        assert not isinstance(self.padding, str)
        top, left = self.padding
        rows = (images.shape[2] + 2 * top - high) // down + 1
        columns = (images.shape[3] + 2 * left - wide) // across + 1
        fill = -(self.in_channels * high * wide) % STRIDE
        patches = F.unfold(images, self.kernel_size, padding=(top, left), stride=self.stride).transpose(1, 2)
        patches = F.pad(patches.reshape(len(images) * rows * columns, -1), (0, fill))
        weights = F.pad(self.weight.reshape(self.out_channels, -1), (0, fill))
        outputs = F.linear(patches, weights, self.bias)
        return outputs.view(len(images), rows, columns, self.out_channels).permute(0, 3, 1, 2)


def with_patches(module: nn.Module) -> nn.Module:
    """A copy of the module in which every plain convolution of few channels is a PatchConv2d: the same function."""
    module = copy.deepcopy(module)
    for child in module.modules():
        if (
            type(child) is nn.Conv2d
            and child.in_channels <= FEW
            and child.groups == 1
            and child.dilation == (1, 1)
            and child.padding_mode == "zeros"
            and not isinstance(child.padding, str)
        ):
            child.__class__ = PatchConv2d
    return module
