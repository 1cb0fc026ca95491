"""Dropout whose masks are a pure function of a seed, so that a client drops the same units on every engine."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

WORD = 0xFFFFFFFF
KINDS = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}  # dimensions that are dropped together


class SeededDropout(nn.Module):
    """A dropout layer that hashes (seed, layer, place of the unit); the seed is given anew for every step."""

    seed: Tensor

    def __init__(self, p: float, together: int, layer: int) -> None:
        super().__init__()
        self.p, self.together, self.layer = p, together, layer
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        shape = x.shape[: x.dim() - self.together] + (1,) * self.together
        places = torch.arange(shape.numel(), device=x.device).view(shape)
        kept = scramble(places + scramble(self.seed + self.layer)) >= int(self.p * 2**32)
        return x * kept / (1 - self.p) if self.p < 1 else x * 0


def scramble(number: Tensor) -> Tensor:
    """32 well-mixed bits of each number: the finaliser of MurmurHash3."""
    number = number & WORD
    number = ((number ^ (number >> 16)) * 0x85EBCA6B) & WORD
    number = ((number ^ (number >> 13)) * 0xC2B2AE35) & WORD
    return number ^ (number >> 16)


def with_seeded_dropout(module: nn.Module) -> nn.Module:
    """A copy of the module in which every dropout layer is a SeededDropout."""
    module = copy.deepcopy(module)
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) in KINDS
    ]
    for layer, (parent, name, child) in enumerate(found):
        assert isinstance(child, _DropoutNd)
        setattr(parent, name, SeededDropout(child.p, KINDS[type(child)], layer))
    return module
