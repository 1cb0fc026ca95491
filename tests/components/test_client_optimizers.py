"""Client optimizers against PyTorch's, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from manyeyes.components import SGD, Adam
from manyeyes.components.client_optimizers import local_step
from manyeyes.core.algorithm import ClientOptimizer
from manyeyes.core.state import RoundContext

GRADIENTS = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
START = torch.linspace(-1, 1, 5)

PAIRS: list[Any] = [
    (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (SGD(0.1, momentum=0.8), lambda p: torch.optim.SGD(p, 0.1, momentum=0.8)),
    (
        SGD(0.1, momentum=0.8, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, weight_decay=0.3),
    ),
    pytest.param(
        Adam(0.1),
        lambda p: torch.optim.Adam(p, 0.1),
    ),
    (
        Adam(0.1, 0.5, 0.9, 1e-3, weight_decay=0.2),
        lambda p: torch.optim.Adam(p, 0.1, (0.5, 0.9), 1e-3, weight_decay=0.2),
    ),
]


@pytest.mark.parametrize(("optimizer", "make_torch_optimizer"), PAIRS)
def test_steps_equal_those_of_torch(
    optimizer: ClientOptimizer, make_torch_optimizer: Callable[[Any], torch.optim.Optimizer]
) -> None:
    expected = START.clone().requires_grad_()
    torch_optimizer = make_torch_optimizer([expected])
    theta, opt_state = START, optimizer.init(START)
    for gradient in GRADIENTS:
        expected.grad = gradient.clone()
        torch_optimizer.step()
        theta, opt_state = optimizer.step(theta, gradient, opt_state, optimizer.learning_rate(0))
        torch.testing.assert_close(theta, expected.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.8, weight_decay=0.3), Adam(0.1)])
def test_a_step_does_not_change_its_arguments(optimizer: ClientOptimizer) -> None:
    theta, gradient, opt_state = START.clone(), GRADIENTS[0].clone(), optimizer.init(START)
    before = [tensor.clone() for tensor in opt_state]
    optimizer.step(theta, gradient, opt_state, 0.1)
    torch.testing.assert_close(theta, START, rtol=0, atol=0)
    torch.testing.assert_close(gradient, GRADIENTS[0], rtol=0, atol=0)
    for tensor, old in zip(opt_state, before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=0, atol=0)


def test_a_large_gradient_is_clipped_to_its_true_norm() -> None:
    """11 million values, as a ResNet18 has: PyTorch's own norm is 4e-4 too small on a CPU."""
    gradient = torch.randn(11_000_000, generator=torch.Generator().manual_seed(0))
    start = torch.zeros_like(gradient)
    moved, _ = local_step(
        RoundContext(SGD(1.0, max_grad_norm=0.5), 1.0, None, None, None), start, start, gradient, None, ()
    )
    assert float(torch.linalg.vector_norm(moved.double())) == pytest.approx(0.5, rel=3e-6)
