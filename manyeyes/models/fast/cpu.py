"""Layers that are faster on a CPU core: the same functions of the same parameters."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from manyeyes.io.cpu_info import cpu_name
from manyeyes.models.fast.winograd import WinogradConv2d, fewer_products

HEAVY = 2**18  # weights of a linear layer, from which on its products outweigh that oneDNN is slower to begin
FEW = 2  # rows, below which a product is a vector's, at which MKL is quick everywhere


class Product(torch.autograd.Function):
    """a b^T of matrices, by oneDNN. Its derivatives are such products too."""

    @staticmethod
    def forward(context: Any, a: Tensor, b: Tensor) -> Tensor:
        context.save_for_backward(a, b)
        b = b if b.is_contiguous() or b.t().is_contiguous() else b.contiguous()
        return torch.ops.mkldnn._linear_pointwise(a.contiguous(), b, None, "none", [], "")

    @staticmethod
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = context.saved_tensors
        of_a, of_b = context.needs_input_grad
        return (
            Product.apply(slope, b.t()) if of_a else None,
            Product.apply(slope.t(), a.t()) if of_b else None,
        )


class OneDNNLinear(nn.Linear):
    """A Linear by oneDNN: MKL, which PyTorch takes, does half of what an AMD core with AVX-512 can."""

    def forward(self, rows: Tensor) -> Tensor:
        if rows.dtype != torch.float32 or rows.numel() < FEW * self.in_features:
            return super().forward(rows)
        found: Tensor = Product.apply(rows.reshape(-1, self.in_features), self.weight)
        found = found.view(*rows.shape[:-1], self.out_features)
        return found if self.bias is None else found + self.bias


def mkl_is_slow() -> bool:
    """Whether PyTorch multiplies by MKL on cores of AMD, whose AVX-512 MKL leaves unused."""
    return (
        "AuthenticAMD" in cpu_name()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def optimize_for_cpu(module: nn.Module) -> nn.Module:
    """A copy of the module with faster layers; convolutions only where its channels lie side by side."""
    module = copy.deepcopy(module)
    beside = "cpu" in getattr(module, "channels_last", ())
    for child in module.modules():
        if type(child) is nn.Conv2d and beside and fewer_products(child):
            child.__class__ = WinogradConv2d
        elif type(child) is nn.Linear and mkl_is_slow() and child.weight.numel() >= HEAVY:
            child.__class__ = OneDNNLinear
    return module
