"""Server optimizers: the first steps computed by hand, and no changed arguments."""

from __future__ import annotations

import pytest
import torch

from manyeyes.components import AdaptiveServer, Schedule, ServerSGD
from manyeyes.core.algorithm import ServerOptimizer

THETA, UPDATE = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0])


def test_momentum_adds_the_last_velocity() -> None:
    server = ServerSGD(lr=0.1, momentum=0.5)
    theta, state = server.step(THETA, UPDATE, server.init(THETA), 0)
    torch.testing.assert_close(theta, torch.tensor([0.95, 2.1]))
    theta, state = server.step(theta, UPDATE, state, 1)
    torch.testing.assert_close(state["velocity"], torch.tensor([0.75, -1.5]))
    torch.testing.assert_close(theta, torch.tensor([0.875, 2.25]))


SQUARES = [  # tau = 0.2, so v starts at 0.04, below g^2 = (0.25, 1)
    ("adam", [0.9 * 0.04 + 0.1 * 0.25, 0.9 * 0.04 + 0.1 * 1]),
    ("yogi", [0.04 + 0.1 * 0.25, 0.04 + 0.1 * 1]),
    ("adagrad", [0.04 + 0.25, 0.04 + 1]),
]


@pytest.mark.parametrize(("variant", "square"), SQUARES)
def test_first_second_moment_from_tau_squared(variant: str, square: list[float]) -> None:
    server = AdaptiveServer(variant, lr=1.0, beta1=0.0, beta2=0.9, tau=0.2)
    theta, state = server.step(THETA, UPDATE, server.init(THETA), 0)
    torch.testing.assert_close(state["square"], torch.tensor(square))
    torch.testing.assert_close(theta, THETA - UPDATE / (torch.tensor(square).sqrt() + 0.2))


def test_yogi_lowers_the_second_moment_by_a_fraction_of_the_new_square() -> None:
    server = AdaptiveServer("yogi", beta2=0.9, tau=2.0)
    _, state = server.step(THETA, UPDATE, server.init(THETA), 0)
    torch.testing.assert_close(state["square"], torch.tensor([4 - 0.025, 4 - 0.1]))


@pytest.mark.parametrize(
    "server", [ServerSGD(lr=2.0, schedule=Schedule(warmup=4)), AdaptiveServer(lr=2.0, schedule=Schedule(warmup=4))]
)
def test_the_learning_rate_follows_the_schedule(server: ServerOptimizer) -> None:
    changes = [THETA - server.step(THETA, UPDATE, server.init(THETA), round)[0] for round in (0, 3)]
    torch.testing.assert_close(4 * changes[0], changes[1])


@pytest.mark.parametrize("server", [ServerSGD(momentum=0.9), AdaptiveServer(), AdaptiveServer(bias_correction=True)])
def test_a_step_does_not_change_the_old_state(server: ServerOptimizer) -> None:
    state = server.init(THETA)
    before = {name: tensor.clone() for name, tensor in state.items()}
    server.step(THETA, UPDATE, state, 0)
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
