"""The fused GroupNorm has the outputs and gradients of PyTorch's layers one after another."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from manyeyes.engines.base import deterministic_kernels
from manyeyes.models import build_model
from manyeyes.models.fast.cuda import optimize_for_cuda
from manyeyes.models.fast.group_norm import FusedGroupNorm

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


def outputs_and_grads(outputs: Tensor, *leaves: Tensor, mask: Tensor | float = 1.0) -> list[Tensor]:
    grad = torch.linspace(-1, 2, outputs.numel(), device=outputs.device).sin().view_as(outputs) * mask
    return [outputs.detach(), *torch.autograd.grad(outputs, leaves, grad.to(outputs.dtype))]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("maximum", [torch.inf, 6.0])
@pytest.mark.parametrize(
    ("images", "channels", "side"), [(3, 24, 9), (2, 24, 16), (2, 144, 12), (2, 144, 33), (1, 64, 1), (16, 96, 14)]
)
def test_norm_residual_and_relu(
    images: int, channels: int, side: int, maximum: float, with_residual: bool, device: str
) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device).requires_grad_()

    norm = FusedGroupNorm(8, channels).to(device)
    norm.maximum = maximum
    weight, bias = random(channels), random(channels)
    norm.weight, norm.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    x = (3 * random(images, channels, side, side) + 40).detach().contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    residual = random(images, channels, side, side) if with_residual else None
    leaves = [x] if residual is None else [x, residual]
    plain = F.group_norm(x.double(), 8, weight.double(), bias.double(), norm.eps)
    plain = plain if residual is None else plain + residual.double()
    is_clear = ((plain.abs() > 1e-4) & ((plain - 6).abs() > 1e-4)).float()  # far enough from the bounds for rounding
    expected = outputs_and_grads(plain.clamp(0, maximum), *leaves, weight, bias, mask=is_clear)
    actual = outputs_and_grads(norm(x, residual, minimum=0.0), *leaves, norm.weight, norm.bias, mask=is_clear)
    for a, b in zip(actual, expected, strict=True):
        assert float((a.double() - b.double()).norm()) < 2e-5 * float(b.double().norm()) + 1e-6


@pytest.mark.fast_cases("mobilenet_v1")
@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v1", "mobilenet_v2"])
def test_models(name: str, device: str) -> None:
    plain = build_model(name, 5, norm="group", size=32).to(device)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.05 * torch.linspace(0, 9, parameter.numel(), device=device).sin().view_as(parameter))
    fast = optimize_for_cuda(plain, vmapped=False)
    norms = [child for child in fast.modules() if isinstance(child, nn.GroupNorm)]
    assert norms and {type(norm) for norm in norms} == {FusedGroupNorm}
    assert not any(isinstance(child, nn.ReLU6) for child in fast.modules())
    assert fast.state_dict().keys() == plain.state_dict().keys()
    images = torch.linspace(0, 50, 4 * 3 * 32 * 32).sin().view(4, 3, 32, 32).to(device)
    images = images.contiguous(memory_format=torch.channels_last)
    double = copy.deepcopy(plain).double()
    expected = outputs_and_grads(double(images.double()), *double.parameters())
    with deterministic_kernels("float32"):
        fused, separate = (outputs_and_grads(model(images), *model.parameters()) for model in (fast, plain))
    for actual, usual, exact in zip(fused, separate, expected, strict=True):
        error, allowed = (float((tensor.double() - exact).norm()) for tensor in (actual, usual))
        assert error <= 3 * allowed + 1e-4 * float(exact.norm()) + 1e-6


def test_rows_are_normalized_too() -> None:
    norm = FusedGroupNorm(2, 6)
    rows = torch.linspace(0, 5, 12).sin().view(2, 6)
    torch.testing.assert_close(norm(rows, rows, minimum=0.0), F.relu(F.group_norm(rows, 2) + rows))
