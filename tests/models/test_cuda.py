"""Layers that are faster on a GPU have the outputs and gradients of PyTorch's, also on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from manyeyes.engines.gpu.compiling import compiled
from manyeyes.models.fast.convolution import GroupConv2d
from manyeyes.models.fast.cuda import (
    AlignedLinear,
    ClientLinear,
    PatchConv2d,
    RowConv2d,
    optimize_for_cuda,
)
from manyeyes.models.fast.group_norm import FusedGroupNorm


def kinds_of(layers: Any) -> list[type]:
    """Return the class of each layer of a Sequential."""
    return [type(layer) for layer in layers]


def losses_and_grads(module: nn.Module, parameters: dict[str, Tensor], images_KBCHW: Tensor) -> list[Tensor]:
    """Return the loss of each of K clients, and the gradients of parameters and images."""

    def loss(client_parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        return functional_call(module, client_parameters, (images,)).square().sum()

    leaves = [tensor.clone().requires_grad_() for tensor in (*parameters.values(), images_KBCHW)]
    loss_K = vmap(loss)(dict(zip(parameters, leaves, strict=False)), leaves[-1])
    return [loss_K, *torch.autograd.grad(loss_K.sum(), leaves)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plain", "kind"),
    [
        (nn.Conv2d(3, 8, 5, padding=2), PatchConv2d),
        (nn.Conv2d(3, 4, 7, stride=2, padding=3, bias=False), PatchConv2d),
        (nn.Conv2d(1, 4, (2, 3), stride=(1, 2), padding=(0, 1)), PatchConv2d),
        (nn.Conv2d(64, 64, 5, padding=2), GroupConv2d),
        (nn.Conv2d(64, 65, (3, 1), padding=(2, 0), bias=False), GroupConv2d),
        (nn.Conv2d(6, 8, 5, padding=2), RowConv2d),
        (nn.Conv2d(6, 8, 3, bias=False), RowConv2d),
        (nn.Conv2d(6, 4, (3, 1), padding=(2, 0)), RowConv2d),
        (nn.Sequential(nn.Flatten(), nn.Linear(972, 10)), nn.Sequential),
        (nn.Sequential(nn.Flatten(), nn.Linear(972, 16, bias=False)), nn.Sequential),
        (nn.Sequential(nn.Flatten(2), nn.Linear(324, 10)), nn.Sequential),
    ],
)
def test_losses_and_gradients_of_several_clients_at_once(plain: nn.Module, kind: type[nn.Module]) -> None:
    plain = plain.double()
    fast = optimize_for_cuda(plain, vmapped=True)
    assert type(fast) is kind
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: torch.randn(3, *tensor.shape, generator=generator, dtype=torch.double)
        for name, tensor in plain.named_parameters()
    }
    channels = plain.in_channels if isinstance(plain, nn.Conv2d) else 3
    images = torch.randn(3, 4, channels, 18, 18, generator=generator, dtype=torch.double)
    for actual, expected in zip(
        losses_and_grads(fast, parameters, images), losses_and_grads(plain, parameters, images), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-9)


def test_the_gradient_of_a_linear_layer_has_the_layout_of_its_weights() -> None:
    fast = optimize_for_cuda(nn.Linear(20, 16), vmapped=True)
    parameters = {"weight": torch.randn(3, 16, 20), "bias": torch.randn(3, 16)}
    assert losses_and_grads(fast, parameters, torch.randn(3, 4, 20))[1].is_contiguous()


@pytest.mark.parametrize(
    "frozen", [nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(6, 64, 3, padding=1)]
)
def test_layers_that_all_clients_share_run_for_each_client(frozen: nn.Conv2d) -> None:
    plain = nn.Sequential(frozen, nn.Flatten(), nn.Linear(64 * 36, 8), nn.ReLU(), nn.Linear(8, 10)).double()
    shared = {name: tensor.detach() for name, tensor in plain.named_parameters() if not name.startswith("4")}
    head = {name: torch.randn(3, *tensor.shape).double() for name, tensor in plain[4].named_parameters(prefix="4")}
    images = torch.randn(3, 2, frozen.in_channels, 6, 6, dtype=torch.double)

    def head_losses_and_grads(module: nn.Module) -> list[Tensor]:
        def loss(client_parameters: dict[str, Tensor], images: Tensor) -> Tensor:
            return functional_call(module, client_parameters | shared, (images,)).square().sum()

        leaves = [tensor.clone().requires_grad_() for tensor in head.values()]
        loss_K = vmap(loss)(dict(zip(head, leaves, strict=True)), images)
        return [loss_K, *torch.autograd.grad(loss_K.sum(), leaves)]

    for actual, expected in zip(
        head_losses_and_grads(optimize_for_cuda(plain, vmapped=True)), head_losses_and_grads(plain), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(
    ("channels", "vmapped", "compile"),
    [
        (3, False, False),
        (3, True, False),
        pytest.param(3, True, True, marks=pytest.mark.slow),
        (6, True, False),
        (64, True, False),
    ],
)
def test_a_module_that_views_contiguous_outputs_still_works(channels: int, vmapped: bool, compile: bool) -> None:
    class ViewsOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(channels, 64, 3), nn.Linear(1024, 5)

        def forward(self, images: Tensor) -> Tensor:
            return self.fc(nn.functional.relu(self.conv(images)).view(len(images), -1))

    plain = ViewsOutputs()
    fast = optimize_for_cuda(plain, vmapped)
    images = torch.randn(2, 3, channels, 6, 6)

    def run_client(images: Tensor) -> Tensor:
        return functional_call(fast, {}, (images,))

    def run_clients(images_KBCHW: Tensor) -> Tensor:
        return (
            vmap(run_client)(images_KBCHW) if vmapped else torch.stack([run_client(images) for images in images_KBCHW])
        )

    actual = (compiled(run_clients) if compile else run_clients)(images)
    torch.testing.assert_close(actual, plain(images.flatten(0, 1)).unflatten(0, (2, 3)), rtol=1e-5, atol=1e-5)


def test_norms_of_one_pixel_are_vectorized() -> None:
    """GroupNorm asks for the memory format that the strides of its images suggest; `vmap` answers for contiguous ones."""
    plain = nn.Sequential(nn.Conv2d(8, 16, 1), nn.GroupNorm(2, 16))
    fast = optimize_for_cuda(plain, vmapped=True)
    images = torch.randn(2, 3, 8, 1, 1)
    actual = vmap(lambda x: functional_call(fast, {}, (x,)))(images)
    torch.testing.assert_close(actual, plain(images.flatten(0, 1)).unflatten(0, (2, 3)), rtol=1e-5, atol=1e-5)


def test_only_supported_layers_are_replaced_in_a_copy() -> None:
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding_mode="reflect", padding=1),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 8, 1, padding=1),
        nn.Linear(8, 16),
        nn.Linear(8, 10),
    )
    fast = optimize_for_cuda(plain, vmapped=True)
    assert kinds_of(fast) == [nn.Conv2d] * 4 + [ClientLinear, ClientLinear]
    assert kinds_of(optimize_for_cuda(plain, vmapped=False))[4:] == [
        nn.Linear,
        AlignedLinear,
    ]
    assert {type(layer) for layer in plain} == {nn.Conv2d, nn.Linear}
    assert type(optimize_for_cuda(nn.Conv2d(8, 8, 3), vmapped=False)) is nn.Conv2d


def test_norms_and_depthwise_convolutions_are_replaced_in_channels_last_models() -> None:
    shared_norm, relu = nn.GroupNorm(2, 8), nn.ReLU()
    plain = nn.Sequential(
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.GroupNorm(2, 8),
        nn.ReLU6(),
        nn.GroupNorm(2, 8, affine=False),
        relu,
        shared_norm,
        relu,
        shared_norm,
        nn.GroupNorm(2, 8),
        relu,
    )
    assert kinds_of(optimize_for_cuda(plain, vmapped=False)) == [type(layer) for layer in plain]
    plain.channels_last = ("cuda",)  # type: ignore[assignment]
    assert kinds_of(optimize_for_cuda(plain, vmapped=True)) == [type(layer) for layer in plain]
    fast = optimize_for_cuda(plain, vmapped=False)
    kinds = [GroupConv2d, nn.Conv2d, FusedGroupNorm, nn.Identity, nn.GroupNorm, nn.ReLU]
    assert kinds_of(fast) == [
        *kinds,
        FusedGroupNorm,
        nn.ReLU,
        FusedGroupNorm,
        FusedGroupNorm,
        nn.Identity,
    ]
    images = torch.linspace(0, 50, 2 * 8 * 9 * 9).sin().view(2, 8, 9, 9)
    torch.testing.assert_close(fast(images), plain(images))
