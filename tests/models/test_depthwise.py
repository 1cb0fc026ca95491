"""Depthwise convolutions have the outputs and gradients of PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from manyeyes.engines.base import deterministic_kernels
from manyeyes.models.fast.convolution import GroupConv2d
from manyeyes.models.fast.cuda import optimize_for_cuda

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


def outputs_and_grads(layer: nn.Module, images: Tensor) -> list[Tensor]:
    images = images.detach().requires_grad_()
    outputs: Tensor = layer(images)
    grad = torch.linspace(0, 99, outputs.numel()).sin().view_as(outputs).to(images)
    return [outputs.detach(), *torch.autograd.grad(outputs, (images, *layer.parameters()), grad)]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("channels", "size", "kernel", "padding"),
    [(24, (12, 10), 3, 1), (144, (6, 30), 3, 1), (64, (9, 7), 3, 1), (16, (12, 12), 5, 2), (8, (6, 8), 3, 0)],
)
def test_outputs_and_gradients(
    channels: int, size: tuple[int, int], kernel: int, padding: int, stride: int, bias: bool, device: str
) -> None:
    plain = nn.Conv2d(channels, channels, kernel, stride, padding, groups=channels, bias=bias).to(device)
    model = nn.Sequential(plain)
    model.channels_last = ("cuda",)  # type: ignore[assignment]
    fast = optimize_for_cuda(model, vmapped=False)
    assert type(next(fast.children())) is GroupConv2d
    images = torch.linspace(0, 50, 3 * channels * size[0] * size[1]).cos().view(3, channels, *size).to(device)
    images = images.contiguous(memory_format=torch.channels_last)
    with deterministic_kernels("float32"):
        for actual, expected in zip(outputs_and_grads(fast, images), outputs_and_grads(model, images), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-4)
