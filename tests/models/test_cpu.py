"""Layers that are faster on a CPU have the outputs and gradients of PyTorch's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from manyeyes.models import build_model
from manyeyes.models.fast.cpu import OneDNNLinear, WinogradConv2d, optimize_for_cpu


def optimized(layer: nn.Conv2d) -> nn.Conv2d:
    plain = nn.Sequential(layer)
    plain.channels_last = ("cpu",)  # type: ignore[assignment]
    fast = optimize_for_cpu(plain)
    assert isinstance(fast, nn.Sequential) and isinstance(fast[0], nn.Conv2d)
    return fast[0]


def outputs_and_grads(layer: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Return the outputs, and the gradients of inputs and parameters for random output gradients."""
    inputs = inputs.detach().requires_grad_()
    outputs = layer(inputs)
    grad = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1)).to(outputs)
    return [outputs, *torch.autograd.grad(outputs, (inputs, *layer.parameters()), grad)]


def assert_same(fast: nn.Module, plain: nn.Module, inputs: Tensor) -> None:
    """Check that outputs and gradients equal those of the plain layer in float64, up to rounding."""
    expected = outputs_and_grads(copy.deepcopy(plain).double(), inputs.double())
    for actual, exact in zip(outputs_and_grads(fast, inputs), expected, strict=True):
        assert actual.shape == exact.shape
        assert torch.linalg.vector_norm(actual - exact) <= 5e-6 * torch.linalg.vector_norm(exact)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(64, 64, 5, padding=2),
        nn.Conv2d(64, 70, 5, bias=False),
        nn.Conv2d(64, 64, (5, 3), padding=(4, 0)),
        nn.Conv2d(128, 128, 3, padding=1, bias=False),
        nn.Conv2d(130, 128, (3, 1), padding=(2, 0)),
    ],
)
@pytest.mark.parametrize("sides", [(16, 16), (9, 12), (6, 31)])
def test_outputs_and_gradients_equal_those_of_the_plain_layer(layer: nn.Conv2d, sides: tuple[int, int]) -> None:
    fast, generator = optimized(layer), torch.Generator().manual_seed(0)
    assert type(fast) is WinogradConv2d
    assert_same(fast, layer, torch.randn(24, layer.in_channels, *sides, generator=generator))


def test_outputs_are_channels_last() -> None:
    outputs = optimized(nn.Conv2d(64, 64, 5, padding=2))(torch.randn(8, 64, 16, 16))
    assert outputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "images", [torch.ones(1, 64, 16, 16), torch.ones(1, 64, 57, 9), torch.ones(8, 64, 16, 16).bfloat16()]
)
def test_few_outputs_tall_images_and_bfloat16_use_the_plain_layer(images: Tensor) -> None:
    layer = nn.Conv2d(64, 64, 5, padding=2).to(images.dtype)
    assert torch.equal(optimized(layer)(images), layer(images))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 64, 5, padding=2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Conv2d(64, 64, 5, stride=2),
        nn.Conv2d(64, 64, 5, dilation=2),
        nn.Conv2d(128, 128, 5, groups=2),
        nn.Conv2d(64, 64, 5, padding="same"),
        nn.Conv2d(64, 64, 5, padding=2, padding_mode="reflect"),
        nn.Conv2d(64, 64, 7, padding=3),
    ],
)
def test_other_layers_are_not_replaced(layer: nn.Conv2d) -> None:
    assert type(optimized(layer)) is nn.Conv2d


def test_the_original_module_does_not_change() -> None:
    plain = build_model("lenet", 10)
    fast = optimize_for_cpu(plain)
    assert [type(layer) for layer in fast.modules()].count(WinogradConv2d) == 1
    assert not any(isinstance(layer, WinogradConv2d) for layer in plain.modules())


def test_a_module_without_channels_last_is_not_changed() -> None:
    fast = optimize_for_cpu(nn.Sequential(nn.Conv2d(64, 64, 5, padding=2)))
    assert isinstance(fast, nn.Sequential) and type(fast[0]) is nn.Conv2d


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(50,), (2,), (1,), (3, 4)])
def test_onednn_products_equal_those_of_the_plain_layer(rows: tuple[int, ...], bias: bool) -> None:
    plain, generator = nn.Linear(700, 400, bias=bias), torch.Generator().manual_seed(0)
    fast = OneDNNLinear(700, 400, bias=bias)
    fast.load_state_dict(plain.state_dict())
    assert_same(fast, plain, torch.randn(*rows, 700, generator=generator))


@pytest.mark.parametrize("rows", [torch.ones(0, 700), torch.ones(8, 700).bfloat16(), torch.ones(8, 700).double()])
def test_no_rows_and_other_types_use_the_plain_layer(rows: Tensor) -> None:
    fast = OneDNNLinear(700, 400).to(rows.dtype)
    assert torch.equal(fast(rows), nn.functional.linear(rows, fast.weight, fast.bias))


@pytest.mark.parametrize("is_slow", [True, False])
def test_large_linear_layers_are_replaced_where_mkl_is_slow(is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.models.fast.cpu.mkl_is_slow", lambda: is_slow)
    kinds = [
        type(layer) for layer in optimize_for_cpu(build_model("lenet", 10)).modules() if isinstance(layer, nn.Linear)
    ]
    assert kinds == [OneDNNLinear if is_slow else nn.Linear, nn.Linear, nn.Linear]
