"""Local training against hand computations and PyTorch's optimizers: centralized training, and every option."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyeyes.algorithms import centralized, fedavg
from manyeyes.components import SGD, Adam, Schedule, ServerSGD
from tests.numpy_reference import (
    INPUTS,
    LABELS,
    LR,
    MULTI_LABEL_POPULATION,
    POPULATION,
    SIZES,
    THETA,
    AlgorithmRun,
    Vector,
    local_sgd,
    pseudo_gradient,
    sigmoid_grad,
)


def torch_epochs(
    run: AlgorithmRun, make_optimizer: Callable[[Any], torch.optim.Optimizer], rounds: int
) -> Iterator[Vector]:
    """Yield the weights after each round of plain PyTorch over the planned batches of the pooled examples."""
    module = nn.Linear(12, 3).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor(THETA[:36]).view(3, 12))
        module.bias.copy_(torch.tensor(THETA[36:]))
    optimizer = make_optimizer(module.parameters())
    for _ in range(rounds):
        (client,) = run.plan().clients
        for row in client.example_indices_SB:
            batch = row[row >= 0]
            optimizer.zero_grad()
            outputs = module(torch.tensor(INPUTS[batch]))
            nn.functional.cross_entropy(outputs, torch.tensor(LABELS[batch])).backward()
            optimizer.step()
        yield np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def test_centralized_equals_torch_sgd_with_persistent_momentum() -> None:
    run = AlgorithmRun(centralized(batch_size=5, lr=0.02, momentum=0.9, weight_decay=0.01), POPULATION.pooled())
    expected = torch_epochs(run, lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, weight_decay=0.01), rounds=3)
    for theta in expected:
        metrics = run.run_round()
        run.assert_at(theta)
        assert metrics.num_images == 22


def test_centralized_adam_equals_torch_adam() -> None:
    adam = Adam(0.01, beta1=0.8, beta2=0.95, weight_decay=0.01, persist_state=True)
    run = AlgorithmRun(replace(centralized(batch_size=5), client_optimizer=adam), POPULATION.pooled())
    for theta in torch_epochs(run, lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.95), weight_decay=0.01), rounds=3):
        run.run_round()
        run.assert_at(theta)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.7},
        {"weight_decay": 0.3},
        {"max_grad_norm": 1.0},
        {"momentum": 0.5, "weight_decay": 0.1, "max_grad_norm": 1.5},
    ],
)
def test_local_sgd_options(options: dict[str, Any]) -> None:
    run = AlgorithmRun(fedavg(cohort_size=3, epochs=2, batch_size=2, lr=LR, **options))
    theta = THETA
    for _ in range(2):
        theta = theta - pseudo_gradient(theta, run.plan(), **options)
        run.run_round()
        run.assert_at(theta)


def test_persistent_local_momentum_is_stored_per_client() -> None:
    run = AlgorithmRun(fedavg(cohort_size=2, batch_size=2, lr=LR, momentum=0.7, persist_state=True))
    theta, velocity = THETA, np.zeros((5, 39))
    for _ in range(4):
        ends, sizes = [], []
        for client in run.plan().clients:
            end, velocity[client.user] = local_sgd(theta, client, momentum=0.7, velocity=velocity[client.user])
            ends.append(end)
            sizes.append(SIZES[client.user])
        theta = np.array(sizes) / sum(sizes) @ np.array(ends)
        run.run_round()
        run.assert_at(theta)


def test_local_and_server_learning_rates_follow_their_schedules() -> None:
    client = SGD(LR, schedule=Schedule(warmup=2))  # 1/2, 1, 1
    server = ServerSGD(lr=0.8, schedule=Schedule("polynomial", rounds=4))  # 1, 3/4, 1/2
    run = AlgorithmRun(replace(fedavg(cohort_size=3, batch_size=2), client_optimizer=client, server_optimizer=server))
    theta = THETA
    for lr, server_lr in [(LR / 2, 0.8), (LR, 0.6), (LR, 0.4)]:
        theta = theta - server_lr * pseudo_gradient(theta, run.plan(), lr=lr)
        run.run_round()
        run.assert_at(theta)


def test_several_labels_train_by_binary_cross_entropy() -> None:
    run = AlgorithmRun(fedavg(cohort_size=3, epochs=2, batch_size=4, lr=LR), MULTI_LABEL_POPULATION)
    theta = THETA
    for _ in range(2):
        theta = theta - pseudo_gradient(theta, run.plan(), grad_fn=sigmoid_grad)
        run.run_round()
        run.assert_at(theta)


def test_the_first_loss_is_the_cross_entropy_of_the_planned_examples() -> None:
    run = AlgorithmRun(fedavg(cohort_size=3, batch_size=22, lr=LR))
    rows = np.concatenate([c.example_indices_SB[c.example_indices_SB >= 0] for c in run.plan().clients])
    logits = INPUTS[rows] @ THETA[:36].reshape(3, 12).T + THETA[36:]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), LABELS[rows]]
    metrics = run.run_round()
    assert metrics.train_loss == pytest.approx(losses.mean(), abs=1e-6)
    assert (metrics.num_images, metrics.max_client_batches) == (len(rows), 1)
