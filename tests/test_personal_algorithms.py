"""Every named algorithm that leaves something with its clients against its paper's formulas, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.algorithms import ditto, fedavg, fedper, fedrep, local_only, scaffold
from manyeyes.components import AdaptiveServer, MatchingLayers, ServerSGD
from tests.numpy_reference import LR, SIZES, THETA, AlgorithmRun, local_sgd, pseudo_gradient, softmax_grad


def test_local_only_users_train_alone_and_share_nothing() -> None:
    run = AlgorithmRun(local_only(epochs=2, batch_size=2, lr=LR))
    alone = np.tile(THETA, (5, 1))
    for _ in range(3):
        for client in run.plan().clients:
            alone[client.user] = local_sgd(alone[client.user], client)[0]
        run.run_round()
        run.assert_at(THETA)
    for user in range(5):
        np.testing.assert_allclose(run.clients[user]["personal"].numpy(), alone[user], atol=1e-6)


BIAS = np.arange(39) >= 36  # what stays with the client in the tests below
HEAD = MatchingLayers(("1.bias",))


@pytest.mark.parametrize(
    "server", [ServerSGD(), ServerSGD(momentum=0.8), AdaptiveServer("adam", 0.02)], ids=["sgd", "momentum", "adam"]
)
def test_fedper_keeps_the_head_with_the_client_and_out_of_the_server(server: Any) -> None:
    """Arivazhagan et al. 2019, Algorithms 1 and 2: 3 of 5 users a round; who is new starts from the first head."""
    run = AlgorithmRun(
        replace(
            fedper(cohort_size=3, epochs=2, batch_size=2, lr=LR, momentum=0.5),
            personal_layers=HEAD,
            server_optimizer=server,
        )
    )
    theta, heads = THETA, np.tile(THETA[BIAS], (5, 1))
    velocity, mean, square = np.zeros(39), np.zeros(39), np.full(39, 1e-6)
    for _ in range(4):
        plan, update = run.plan(), np.zeros(39)
        n = sum(SIZES[c.user] for c in plan.clients)
        for client in plan.clients:
            begin = np.where(BIAS, np.concatenate([np.zeros(36), heads[client.user]]), theta)
            end, _ = local_sgd(begin, client, momentum=0.5)
            heads[client.user] = end[BIAS]
            update += SIZES[client.user] / n * np.where(BIAS, 0, begin - end)
        if isinstance(server, AdaptiveServer):
            mean, square = 0.9 * mean + 0.1 * update, 0.99 * square + 0.01 * update**2
            theta = theta - 0.02 * mean / (np.sqrt(square) + 1e-3)
        else:
            velocity = server.momentum * velocity + update
            theta = theta - velocity
        run.run_round()
        run.assert_at(theta)
        assert np.array_equal(run.state.weights.numpy()[BIAS], THETA[BIAS].astype(np.float32))
        for name in ("velocity", "mean"):
            if name in run.state.opt_state:
                assert not run.state.opt_state[name][36:].any()
    for user, kept in run.clients.items():
        np.testing.assert_allclose(kept["personal"].numpy(), heads[user], atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.7}, {"weight_decay": 0.3}, {"momentum": 0.5, "weight_decay": 0.1, "max_grad_norm": 1.0}],
)
def test_fedrep_moves_the_head_first_and_then_the_body(options: dict[str, Any]) -> None:
    """Collins et al. 2021, Algorithm 1: the part that rests neither decays nor glides, nor does its grad_fn clip."""
    run = AlgorithmRun(
        replace(fedrep(head_epochs=2, cohort_size=3, epochs=1, batch_size=2, lr=LR, **options), personal_layers=HEAD)
    )
    momentum, decay, clip = (
        options.get("momentum", 0.0),
        options.get("weight_decay", 0.0),
        options.get("max_grad_norm", np.inf),
    )
    theta, heads = THETA, np.tile(THETA[BIAS], (5, 1))
    for _ in range(3):
        plan, update = run.plan(), np.zeros(39)
        n = sum(SIZES[c.user] for c in plan.clients)
        for client in plan.clients:
            now = np.where(BIAS, np.concatenate([np.zeros(36), heads[client.user]]), theta)
            begin, velocity = now, np.zeros(39)
            epoch = -(-SIZES[client.user] // 2)
            assert len(client.example_indices_SB) == 3 * epoch
            for step, row in enumerate(client.example_indices_SB):
                moves = BIAS if step < 2 * epoch else ~BIAS
                gradient = softmax_grad(now, row[row >= 0])[moves]
                gradient = gradient * min(1.0, clip / float(np.linalg.norm(gradient))) + decay * now[moves]
                velocity[moves] = momentum * velocity[moves] + gradient
                now = now.copy()
                now[moves] -= LR * velocity[moves]
            heads[client.user] = now[BIAS]
            update += SIZES[client.user] / n * np.where(BIAS, 0, begin - now)
        theta = theta - update
        run.run_round()
        run.assert_at(theta)
    for user, kept in run.clients.items():
        np.testing.assert_allclose(kept["personal"].numpy(), heads[user], atol=1e-6)


def test_ditto_trains_a_model_of_each_clients_own_tied_to_the_servers() -> None:
    """Li et al. 2021, Algorithm 1: both models see the weights that the server sent."""
    run = AlgorithmRun(ditto(lam=0.7, cohort_size=3, epochs=2, batch_size=2, lr=LR, momentum=0.5))
    theta, own = THETA, np.tile(THETA, (5, 1))
    own_seen = set()
    for _ in range(4):
        for client in run.plan().clients:
            now, velocity = own[client.user] if client.user in own_seen else theta, np.zeros(39)
            for row in client.example_indices_SB:
                gradient = softmax_grad(now, row[row >= 0]) + 0.7 * (now - theta)
                velocity = 0.5 * velocity + gradient
                now = now - LR * velocity
            own[client.user] = now
            own_seen.add(client.user)
        theta = theta - pseudo_gradient(theta, run.plan(), momentum=0.5)
        run.run_round()
        run.assert_at(theta)
    assert set(run.clients) == own_seen
    for user in own_seen:
        np.testing.assert_allclose(run.clients[user]["personal_model/personal"].numpy(), own[user], atol=2e-6)


def test_ditto_beside_scaffold_keeps_both() -> None:
    run = AlgorithmRun(replace(ditto(lam=0.7, cohort_size=3, batch_size=2, lr=LR), correction=scaffold().correction))
    alone = AlgorithmRun(
        replace(scaffold(cohort_size=3, batch_size=2, lr=LR), client_weighting=fedavg().client_weighting)
    )
    for _ in range(3):
        run.run_round()
        alone.run_round()
    assert torch.equal(run.state.weights, alone.state.weights)
    assert all(kept.keys() == {"control", "personal_model/personal"} for kept in run.clients.values())
