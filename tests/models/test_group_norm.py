"""The fused GroupNorm computes, and differentiates, what PyTorch's layers do one after another."""

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


def slopes(outputs: Tensor, *leaves: Tensor, where: Tensor | float = 1.0) -> list[Tensor]:
    slope = torch.linspace(-1, 2, outputs.numel(), device=outputs.device).sin().view_as(outputs) * where
    return [outputs.detach(), *torch.autograd.grad(outputs, leaves, slope.to(outputs.dtype))]


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("way_around", [False, True])
@pytest.mark.parametrize("high", [torch.inf, 6.0])
@pytest.mark.parametrize(
    ("images", "channels", "side"), [(3, 24, 9), (2, 24, 16), (2, 144, 12), (2, 144, 33), (1, 64, 1), (16, 96, 14)]
)
def test_norm_sum_and_relu(images: int, channels: int, side: int, high: float, way_around: bool, device: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device).requires_grad_()

    norm = FusedGroupNorm(8, channels).to(device)
    norm.high = high
    weight, bias = drawn(channels), drawn(channels)
    norm.weight, norm.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    x = (3 * drawn(images, channels, side, side) + 40).detach().contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    around = drawn(images, channels, side, side) if way_around else None
    leaves = [x] if around is None else [x, around]
    plain = F.group_norm(x.double(), 8, weight.double(), bias.double(), norm.eps)
    plain = plain if around is None else plain + around.double()
    clear = ((plain.abs() > 1e-4) & ((plain - 6).abs() > 1e-4)).float()  # of the bounds, whatever is rounded
    wanted = slopes(plain.clamp(0, high), *leaves, weight, bias, where=clear)
    found = slopes(norm(x, around, low=0.0), *leaves, norm.weight, norm.bias, where=clear)
    for one, other in zip(found, wanted, strict=True):
        length = torch.linalg.vector_norm(other.double())
        assert float(torch.linalg.vector_norm(one.double() - other.double())) < 2e-5 * float(length) + 1e-6


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v1", "mobilenet_v2"])
def test_whole_models(name: str, device: str) -> None:
    plain = build_model(name, 5, norm="group", size=32).to(device)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter += 0.05 * torch.linspace(0, 9, parameter.numel(), device=device).sin().view_as(parameter)
    fast = optimize_for_cuda(plain, vmapped=False)
    norms = [child for child in fast.modules() if isinstance(child, nn.GroupNorm)]
    assert norms and {type(norm) for norm in norms} == {FusedGroupNorm}
    assert not any(isinstance(child, nn.ReLU6) for child in fast.modules())
    assert fast.state_dict().keys() == plain.state_dict().keys()
    images = torch.linspace(0, 50, 4 * 3 * 32 * 32).sin().view(4, 3, 32, 32).to(device)
    images = images.contiguous(memory_format=torch.channels_last)
    double = copy.deepcopy(plain).double()
    wanted = slopes(double(images.double()), *double.parameters())
    with deterministic_kernels("float32"):
        own, other = (slopes(model(images), *model.parameters()) for model in (fast, plain))
    for found, usual, exact in zip(own, other, wanted, strict=True):
        error, allowed = (float((each.double() - exact).norm()) for each in (found, usual))
        assert error <= 3 * allowed + 1e-4 * float(exact.norm()) + 1e-6


def test_what_is_no_image_is_normalised_too() -> None:
    norm = FusedGroupNorm(2, 6)
    rows = torch.linspace(0, 5, 12).sin().view(2, 6)
    torch.testing.assert_close(norm(rows, rows, low=0.0), F.relu(F.group_norm(rows, 2) + rows))
