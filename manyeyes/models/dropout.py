"""Dropout whose masks are a pure function of a seed, so that a client drops the same units on every engine."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

MASK_32_BITS = 0xFFFFFFFF
DROPPED_DIMS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}  # trailing ones dropped together


class SeededDropout(nn.Module):
    """A dropout layer that hashes (seed, layer, position of the unit); every step has a new seed."""

    seed: Tensor

    def __init__(self, p: float, dropped_dims: int, layer: int) -> None:
        super().__init__()
        self.p, self.dropped_dims, self.layer = p, dropped_dims, layer
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        shape = x.shape[: x.dim() - self.dropped_dims] + (1,) * self.dropped_dims
        positions = torch.arange(shape.numel(), device=x.device).view(shape)
        mask = mix_bits(positions + mix_bits(self.seed + self.layer)) >= int(self.p * 2**32)
        return x * mask / (1 - self.p) if self.p < 1 else x * 0


def mix_bits(number: Tensor) -> Tensor:
    """Return 32 well-mixed bits of each number: the finalizer of MurmurHash3."""
    number = number & MASK_32_BITS
    number = ((number ^ (number >> 16)) * 0x85EBCA6B) & MASK_32_BITS
    number = ((number ^ (number >> 13)) * 0xC2B2AE35) & MASK_32_BITS
    return number ^ (number >> 16)


def with_seeded_dropout(module: nn.Module) -> nn.Module:
    """Return a copy of the module in which every dropout layer is a SeededDropout."""
    module = copy.deepcopy(module)
    dropouts = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) in DROPPED_DIMS
    ]
    for layer, (parent, name, child) in enumerate(dropouts):
        assert isinstance(child, _DropoutNd), "only dropout layers are replaced"
        setattr(parent, name, SeededDropout(child.p, DROPPED_DIMS[type(child)], layer))
    return module
