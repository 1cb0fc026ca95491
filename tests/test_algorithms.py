"""Every named algorithm with one model for all clients, against its paper's formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from manyeyes.algorithms import (
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedir,
    fednova,
    fedprox,
    fedvc,
    fedyogi,
    mimelite,
    scaffold,
)
from manyeyes.components import AdaptiveServer, AllClients, ImportanceReweighting, ProximalTerm
from manyeyes.core.algorithm import Algorithm
from tests.numpy_reference import (
    LABELS,
    LR,
    OWNERS,
    SIZES,
    THETA,
    AlgorithmRun,
    importance,
    local_sgd,
    pseudo_gradient,
    softmax_grad,
)


def test_fedavg_averages_clients_of_different_sizes_by_size() -> None:
    run = AlgorithmRun(fedavg(cohort_size=3, epochs=3, batch_size=2, lr=LR))
    theta = THETA
    for _ in range(2):
        theta = theta - pseudo_gradient(theta, run.plan())
        metrics = run.run_round()
        run.assert_at(theta)
    assert metrics.num_clients == 3


def test_fedavgm_is_server_momentum_over_rounds() -> None:
    run = AlgorithmRun(fedavgm(momentum=0.8, cohort_size=3, epochs=2, batch_size=2, lr=LR))
    theta, velocity = THETA, np.zeros(39)
    for _ in range(4):
        velocity = 0.8 * velocity + pseudo_gradient(theta, run.plan())
        theta = theta - velocity
        run.run_round()
        run.assert_at(theta)


@pytest.mark.parametrize(("make", "beta1"), [(fedadam, 0.9), (fedyogi, 0.9), (fedadagrad, 0.0)])
def test_adaptive_servers_follow_algorithm_2_of_reddi_et_al(make: Callable[..., Algorithm], beta1: float) -> None:
    run = AlgorithmRun(make(server_lr=0.02, cohort_size=3, batch_size=3, lr=LR))
    beta2, tau = 0.99, 1e-3
    theta, mean, square = THETA, np.zeros(39), np.full(39, tau**2)
    for _ in range(4):
        g = pseudo_gradient(theta, run.plan())
        mean = beta1 * mean + (1 - beta1) * g
        if make is fedadam:
            square = beta2 * square + (1 - beta2) * g**2
        elif make is fedyogi:
            square = square - (1 - beta2) * g**2 * np.sign(square - g**2)
        else:
            square = square + g**2
        theta = theta - 0.02 * mean / (np.sqrt(square) + tau)
        run.run_round()
        run.assert_at(theta)


def test_bias_corrected_server_adam_equals_torch_adam_on_the_pseudo_gradient() -> None:
    server = AdaptiveServer("adam", lr=0.02, beta1=0.8, beta2=0.95, tau=1e-3, bias_correction=True)
    run = AlgorithmRun(replace(fedavg(cohort_size=3, batch_size=3, lr=LR), server_optimizer=server))
    theta = torch.tensor(THETA, requires_grad=True)
    adam = torch.optim.Adam([theta], lr=0.02, betas=(0.8, 0.95), eps=1e-3)
    for _ in range(4):
        theta.grad = torch.tensor(pseudo_gradient(theta.detach().numpy(), run.plan()))
        adam.step()
        run.run_round()
        run.assert_at(theta.detach().numpy())


TARGETS = ["population", (0.5, 0.2, 0.3), (0.6, 0.0, 0.4)]


@pytest.mark.parametrize("target", TARGETS)
def test_fedir_weighs_examples_by_p_over_q_within_the_batch(target: str | tuple[float, ...]) -> None:
    """Eq. 3 and 4; user 1 has no owl, and user 3, who has only dogs, weighs nothing where p(dog) = 0."""
    run = AlgorithmRun(replace(fedir(target, epochs=2, batch_size=2, lr=LR), sampler=AllClients()))
    target_C = np.bincount(LABELS) / len(LABELS) if isinstance(target, str) else np.array(target)
    theta = THETA
    for _ in range(2):
        ends = []
        for client in run.plan().clients:
            ends.append(local_sgd(theta, client, example_weight=importance(target_C, client.user))[0])
        theta = SIZES / SIZES.sum() @ np.array(ends)
        run.run_round()
        run.assert_at(theta)


def test_fedvc_weights_virtual_clients_uniformly() -> None:
    run = AlgorithmRun(fedvc(cohort_size=3, virtual_client_size=4, batch_size=3, lr=LR))
    theta = THETA
    for _ in range(3):
        plan = run.plan()
        for client in plan.clients:
            assert (client.example_indices_SB >= 0).sum() == 4
            assert set(OWNERS[client.example_indices_SB[client.example_indices_SB >= 0]]) == {client.user}
        theta = np.mean([local_sgd(theta, c)[0] for c in plan.clients], axis=0)
        run.run_round()
        run.assert_at(theta)


def test_fedvc_combines_with_fedir_and_server_momentum() -> None:
    mixed = replace(
        fedvc(cohort_size=3, virtual_client_size=4, batch_size=3, lr=LR),
        example_weighting=ImportanceReweighting(),
        server_optimizer=fedavgm().server_optimizer,
    )
    run = AlgorithmRun(mixed)
    target_C = np.bincount(LABELS) / len(LABELS)
    theta, velocity = THETA, np.zeros(39)
    for _ in range(3):
        updates = []
        for client in run.plan().clients:
            updates.append(theta - local_sgd(theta, client, example_weight=importance(target_C, client.user))[0])
        velocity = 0.9 * velocity + np.mean(updates, axis=0)
        theta = theta - velocity
        run.run_round()
        run.assert_at(theta)


def test_fedprox_adds_a_proximal_term() -> None:
    run = AlgorithmRun(fedprox(mu=0.7, cohort_size=3, epochs=3, batch_size=2, lr=LR))
    theta = THETA
    for _ in range(2):
        theta = theta - pseudo_gradient(theta, run.plan(), proximal_strength=0.7)
        run.run_round()
        run.assert_at(theta)


def test_scaffold_updates_the_control_variates_of_its_clients() -> None:
    """Karimireddy et al. 2020, Algorithm 1, option II: 2 of 5 users per round."""
    run = AlgorithmRun(scaffold(cohort_size=2, epochs=2, batch_size=2, lr=LR))
    theta, c, c_k = THETA, np.zeros(39), np.zeros((5, 39))
    for _ in range(5):
        ends, changes = [], []
        for client in run.plan().clients:
            end, _ = local_sgd(theta, client, offset=c - c_k[client.user])
            steps = 2 * -(-SIZES[client.user] // 2)
            new = c_k[client.user] - c + (theta - end) / (steps * LR)
            ends.append(end)
            changes.append(new - c_k[client.user])
            c_k[client.user] = new
        theta = np.mean(ends, axis=0)
        c = c + np.sum(changes, axis=0) / 5
        run.run_round()
        run.assert_at(theta)
        assert run.state.correction_state is not None
        np.testing.assert_allclose(run.state.correction_state.numpy(), c, atol=1e-6)
    for user, client_state in run.clients.items():
        np.testing.assert_allclose(client_state["correction"].numpy(), c_k[user], atol=2e-6)


def geometric_sum(ratio: float, steps: int) -> float:
    return (1 - ratio**steps) / (1 - ratio)


NORMALIZATION = [  # momentum, mu, ||a||_1 after a number of steps (Wang et al. 2020, section 4.1)
    (0.0, 0.0, lambda steps: steps),
    (0.6, 0.0, lambda steps: (steps - 0.6 * geometric_sum(0.6, steps)) / (1 - 0.6)),
    (0.0, 0.7, lambda steps: geometric_sum(1 - LR * 0.7, steps)),
]


@pytest.mark.parametrize(("momentum", "mu", "factor"), NORMALIZATION)
def test_fednova_normalizes_clients_with_different_numbers_of_steps(
    momentum: float, mu: float, factor: Callable[[int], float]
) -> None:
    algorithm = fednova(cohort_size=4, epochs=2, batch_size=2, lr=LR, momentum=momentum)
    run = AlgorithmRun(replace(algorithm, correction=ProximalTerm(mu)) if mu else algorithm)
    theta = THETA
    for _ in range(2):
        plan = run.plan()
        sizes = np.array([SIZES[c.user] for c in plan.clients])
        factors = np.array([factor(2 * -(-n // 2)) for n in sizes])
        assert len(set(factors)) > 1
        p = sizes / sizes.sum()
        updates = np.array(
            [theta - local_sgd(theta, c, momentum=momentum, proximal_strength=mu)[0] for c in plan.clients]
        )
        theta = theta - (p @ factors) * (p @ (updates / factors[:, None]))
        run.run_round()
        run.assert_at(theta)


def test_mimelite_applies_the_momentum_of_full_gradients() -> None:
    run = AlgorithmRun(mimelite(mime_momentum=0.8, cohort_size=3, epochs=2, batch_size=2, lr=LR))
    theta, m = THETA, np.zeros(39)
    for _ in range(4):
        users = [c.user for c in run.plan().clients]
        ends = [local_sgd(theta, c, gradient_scale=0.2, offset=0.8 * m)[0] for c in run.plan().clients]
        full_grads = [softmax_grad(theta, np.flatnonzero(user == OWNERS)) for user in users]
        theta, m = np.mean(ends, axis=0), 0.8 * m + 0.2 * np.mean(full_grads, axis=0)
        run.run_round()
        run.assert_at(theta)
