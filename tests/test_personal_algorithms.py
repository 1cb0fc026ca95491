"""Every named algorithm with client state of its own, against its paper's formulas in NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.algorithms import ditto, fedavg, fedper, fedrep, local_only, scaffold
from manyeyes.components import AdaptiveServer, MatchingLayers, ServerSGD
from tests.numpy_reference import LR, SIZES, THETA, AlgorithmRun, local_sgd, pseudo_gradient, softmax_grad


def test_local_only_trains_each_user_alone() -> None:
    run = AlgorithmRun(local_only(epochs=2, batch_size=2, lr=LR))
    local = np.tile(THETA, (5, 1))
    for _ in range(3):
        for client in run.plan().clients:
            local[client.user] = local_sgd(local[client.user], client)[0]
        run.run_round()
        run.assert_at(THETA)
    for user in range(5):
        np.testing.assert_allclose(run.clients[user]["personal_weights"].numpy(), local[user], atol=1e-6)


IS_BIAS = np.arange(39) >= 36  # the personal layers of the tests below
BIAS_LAYERS = MatchingLayers(("1.bias",))


@pytest.mark.parametrize(
    "server", [ServerSGD(), ServerSGD(momentum=0.8), AdaptiveServer("adam", 0.02)], ids=["sgd", "momentum", "adam"]
)
def test_fedper_stores_the_head_with_the_client_and_not_at_the_server(server: Any) -> None:
    """Arivazhagan et al. 2019, Algorithms 1 and 2: 3 of 5 users per round; a new user starts from the initial head."""
    run = AlgorithmRun(
        replace(
            fedper(cohort_size=3, epochs=2, batch_size=2, lr=LR, momentum=0.5),
            personal_layers=BIAS_LAYERS,
            server_optimizer=server,
        )
    )
    theta, heads = THETA, np.tile(THETA[IS_BIAS], (5, 1))
    velocity, mean, square = np.zeros(39), np.zeros(39), np.full(39, 1e-6)
    for _ in range(4):
        plan, update = run.plan(), np.zeros(39)
        n = sum(SIZES[c.user] for c in plan.clients)
        for client in plan.clients:
            begin = np.where(IS_BIAS, np.concatenate([np.zeros(36), heads[client.user]]), theta)
            end, _ = local_sgd(begin, client, momentum=0.5)
            heads[client.user] = end[IS_BIAS]
            update += SIZES[client.user] / n * np.where(IS_BIAS, 0, begin - end)
        if isinstance(server, AdaptiveServer):
            mean, square = 0.9 * mean + 0.1 * update, 0.99 * square + 0.01 * update**2
            theta = theta - 0.02 * mean / (np.sqrt(square) + 1e-3)
        else:
            velocity = server.momentum * velocity + update
            theta = theta - velocity
        run.run_round()
        run.assert_at(theta)
        assert np.array_equal(run.state.weights.numpy()[IS_BIAS], THETA[IS_BIAS].astype(np.float32))
        for name in ("velocity", "mean"):
            if name in run.state.opt_state:
                assert not run.state.opt_state[name][36:].any()
    for user, client_state in run.clients.items():
        np.testing.assert_allclose(client_state["personal_weights"].numpy(), heads[user], atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.7}, {"weight_decay": 0.3}, {"momentum": 0.5, "weight_decay": 0.1, "max_grad_norm": 1.0}],
)
def test_fedrep_trains_the_head_first_and_then_the_body(options: dict[str, Any]) -> None:
    """Collins et al. 2021, Algorithm 1: the other part has no weight decay, no momentum step and no say in clipping."""
    run = AlgorithmRun(
        replace(
            fedrep(head_epochs=2, cohort_size=3, epochs=1, batch_size=2, lr=LR, **options), personal_layers=BIAS_LAYERS
        )
    )
    momentum, weight_decay, max_grad_norm = (
        options.get("momentum", 0.0),
        options.get("weight_decay", 0.0),
        options.get("max_grad_norm", np.inf),
    )
    theta, heads = THETA, np.tile(THETA[IS_BIAS], (5, 1))
    for _ in range(3):
        plan, update = run.plan(), np.zeros(39)
        n = sum(SIZES[c.user] for c in plan.clients)
        for client in plan.clients:
            now = np.where(IS_BIAS, np.concatenate([np.zeros(36), heads[client.user]]), theta)
            begin, velocity = now, np.zeros(39)
            epoch = -(-SIZES[client.user] // 2)
            assert len(client.example_indices_SB) == 3 * epoch
            for step, row in enumerate(client.example_indices_SB):
                trains = IS_BIAS if step < 2 * epoch else ~IS_BIAS
                grad = softmax_grad(now, row[row >= 0])[trains]
                grad = grad * min(1.0, max_grad_norm / float(np.linalg.norm(grad))) + weight_decay * now[trains]
                velocity[trains] = momentum * velocity[trains] + grad
                now = now.copy()
                now[trains] -= LR * velocity[trains]
            heads[client.user] = now[IS_BIAS]
            update += SIZES[client.user] / n * np.where(IS_BIAS, 0, begin - now)
        theta = theta - update
        run.run_round()
        run.assert_at(theta)
    for user, client_state in run.clients.items():
        np.testing.assert_allclose(client_state["personal_weights"].numpy(), heads[user], atol=1e-6)


def test_ditto_trains_a_personal_model_tied_to_the_servers() -> None:
    """Li et al. 2021, Algorithm 1: both models start from the weights that the server sent."""
    run = AlgorithmRun(ditto(lam=0.7, cohort_size=3, epochs=2, batch_size=2, lr=LR, momentum=0.5))
    theta, personal = THETA, np.tile(THETA, (5, 1))
    trained_users = set()
    for _ in range(4):
        for client in run.plan().clients:
            now, velocity = personal[client.user] if client.user in trained_users else theta, np.zeros(39)
            for row in client.example_indices_SB:
                gradient = softmax_grad(now, row[row >= 0]) + 0.7 * (now - theta)
                velocity = 0.5 * velocity + gradient
                now = now - LR * velocity
            personal[client.user] = now
            trained_users.add(client.user)
        theta = theta - pseudo_gradient(theta, run.plan(), momentum=0.5)
        run.run_round()
        run.assert_at(theta)
    assert set(run.clients) == trained_users
    for user in trained_users:
        np.testing.assert_allclose(
            run.clients[user]["personal_model/personal_weights"].numpy(), personal[user], atol=2e-6
        )


def test_ditto_with_scaffold_stores_both_states() -> None:
    run = AlgorithmRun(replace(ditto(lam=0.7, cohort_size=3, batch_size=2, lr=LR), correction=scaffold().correction))
    without_ditto = AlgorithmRun(
        replace(scaffold(cohort_size=3, batch_size=2, lr=LR), client_weighting=fedavg().client_weighting)
    )
    for _ in range(3):
        run.run_round()
        without_ditto.run_round()
    assert torch.equal(run.state.weights, without_ditto.state.weights)
    assert all(
        client_state.keys() == {"correction", "personal_model/personal_weights"}
        for client_state in run.clients.values()
    )
