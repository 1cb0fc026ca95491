"""A module as a function of one vector."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from manyeyes.models.flat import FlatModel

IMAGES = torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def module() -> Any:
    """Return a frozen convolution, BatchNorm, and a head."""
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))
    net[0].requires_grad_(False)
    net[1].running_mean.fill_(0.3)
    return net


def test_the_vector_has_trainable_parameters_then_statistics() -> None:
    flat = FlatModel(module())
    assert (flat.num_trainable, flat.num_shared) == (2 + 2 + 32 + 4, 40 + 2 + 2)
    assert list(flat.shapes) == ["1.weight", "1.bias", "4.weight", "4.bias", "1.running_mean", "1.running_var"]


def test_written_values_are_read_and_set_in_the_module() -> None:
    net = module()
    frozen = net[0].weight.clone()
    flat = FlatModel(net)
    values = torch.arange(44.0)
    flat.write(values)
    assert torch.equal(flat.read(), values)
    assert torch.equal(net[4].weight, torch.arange(4.0, 36).view(4, 8))
    assert net[1].running_var.tolist() == [42, 43]
    assert torch.equal(net[0].weight, frozen)


def test_read_values_are_a_copy() -> None:
    net = module()
    FlatModel(net).read().zero_()
    assert bool((net[1].weight == 1).all())


@pytest.mark.parametrize("training", [True, False])
def test_outputs_are_those_of_the_module(training: bool) -> None:
    flat = FlatModel(module().train(training))
    weights = flat.read() + 0.1
    outputs = flat(weights[:40], weights[40:].clone(), IMAGES)
    expected = module().train(training)
    FlatModel(expected).write(weights)
    torch.testing.assert_close(outputs, expected(IMAGES), rtol=0, atol=1e-6)


def test_a_large_parameter_is_a_piece_of_its_own() -> None:
    flat = FlatModel(module())
    assert flat.pieces == [[2, 2], [32], [4]]  # of 40, 5 and more are large
    weights = flat.read() + 0.1
    pieces = weights[:40].split([4, 32, 4])
    assert torch.equal(flat(pieces, weights[40:].clone(), IMAGES), flat(weights[:40], weights[40:].clone(), IMAGES))
    assert FlatModel(nn.Sequential(*(nn.Linear(9, 9, bias=False) for _ in range(9)))).pieces == [[81] * 9]


def test_training_updates_the_statistics_of_the_vector_and_not_of_the_module() -> None:
    net = module().train()
    flat = FlatModel(net)
    weights = flat.read()
    statistics = weights[40:].clone()
    flat(weights[:40], statistics, IMAGES)
    assert net[1].running_mean.tolist() == pytest.approx([0.3, 0.3])
    expected = module().train()
    expected(IMAGES)
    assert torch.equal(statistics, torch.cat([expected[1].running_mean, expected[1].running_var]))


def test_evaluation_updates_no_statistics() -> None:
    flat = FlatModel(module().eval())
    weights = flat.read()
    statistics = weights[40:].clone()
    flat(weights[:40], statistics, IMAGES)
    assert torch.equal(statistics, weights[40:])


def test_gradient_is_that_of_the_module() -> None:
    net = module().eval()
    flat = FlatModel(net)
    weights = flat.read()
    theta = weights[:40].clone().requires_grad_()
    (grad,) = torch.autograd.grad(flat(theta, weights[40:], IMAGES).square().sum(), theta)
    net(IMAGES).square().sum().backward()
    expected = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
    torch.testing.assert_close(grad, torch.cat(expected))


def test_mask_is_true_where_the_name_is_chosen() -> None:
    mask = FlatModel(module()).mask(lambda name: name.startswith("4.") or name == "1.running_var")
    assert mask.tolist() == [False] * 4 + [True] * 36 + [False] * 2 + [True] * 2


def test_a_shared_parameter_is_in_the_vector_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    flat = FlatModel(net)
    assert flat.num_shared == 16 + 4 + 4
    theta = torch.linspace(-1, 1, 24)
    expected = (torch.ones(1, 4) @ theta[:16].view(4, 4).T + theta[16:20]) @ theta[:16].view(4, 4).T + theta[20:]
    torch.testing.assert_close(flat(theta, torch.zeros(0), torch.ones(1, 4)), expected)


def test_a_module_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter that trains"):
        FlatModel(nn.Linear(2, 2).requires_grad_(False))
