"""The plan of a round: every random choice of a client depends on that client only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from manyeyes.algorithms import fedavg
from manyeyes.components import (
    AllClients,
    EpochBatching,
    FedNovaWeighting,
    ImportanceReweighting,
    PoissonSampler,
    VirtualClientBatching,
)
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import STEP_SEED_STRIDE, plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.rng import derive_key, make_rng

OFFSETS = np.cumsum([0, 1, 7, 3, 12, 5])
LABELS = SingleLabels(np.arange(28) % 3, ("a", "b", "c"))
POPULATION = Population(
    np.zeros((28, 4, 4, 3), np.uint8), LABELS, OFFSETS, np.array([10, 20, 30, 40, 50]), np.arange(28)
)
FEDAVG = replace(fedavg(cohort_size=3), batching=EpochBatching(2, 4, max_examples=6))


def test_the_plan_of_a_seed_never_changes() -> None:
    """Numbers of an earlier version, so that its runs can be resumed."""
    plan = plan_round(FEDAVG, POPULATION, seed=7, round=3, num_augment_uniforms=1)
    assert [(client.client_id, client.num_examples, client.weight, client.num_images) for client in plan.clients] == [
        (50, 5, 5.0, 10),
        (10, 1, 1.0, 2),
        (40, 6, 6.0, 12),
    ]
    assert [client.example_indices_SB.tolist() for client in plan.clients] == [
        [[26, 25, 24, 23], [27, -1, -1, -1], [25, 24, 23, 26], [27, -1, -1, -1]],
        [[0, -1, -1, -1], [0, -1, -1, -1]],
        [[19, 15, 11, 20], [17, 12, -1, -1], [19, 15, 11, 12], [20, 17, -1, -1]],
    ]
    assert [int(client.dropout_seeds_S[-1]) for client in plan.clients] == [999069321652, 1091552210046, 529749619393]
    uniforms = [
        client.augment_uniforms_SBD[-1, 0, 0] for client in plan.clients if client.augment_uniforms_SBD is not None
    ]
    np.testing.assert_array_equal(
        uniforms, np.array([0.8933207392692566, 0.6842814087867737, 0.7007142305374146], np.float32)
    )


@pytest.mark.parametrize(
    "batching",
    [
        EpochBatching(1, 4),
        EpochBatching(2, 5, max_examples=6),
        EpochBatching(1, 2, head_epochs=1),
        VirtualClientBatching(6, 4),
    ],
)
@pytest.mark.parametrize("example_weighting", [None, ImportanceReweighting()])
def test_every_client_has_its_own_generators(
    batching: EpochBatching | VirtualClientBatching, example_weighting: ImportanceReweighting | None
) -> None:
    algorithm = replace(FEDAVG, sampler=AllClients(), batching=batching, example_weighting=example_weighting)
    for client in plan_round(algorithm, POPULATION, seed=5, round=2, num_augment_uniforms=4).clients:
        first, last = OFFSETS[client.user : client.user + 2]
        rows = batching.batches(int(last - first), make_rng(5, "draw", 2, client.client_id))
        is_real = rows >= 0
        np.testing.assert_array_equal(client.example_indices_SB, np.where(is_real, first + rows, -1))
        uniforms = make_rng(5, "augment", 2, client.client_id).random((*rows.shape, 4), np.float32)
        assert client.augment_uniforms_SBD is not None, "the plan was made for four uniforms per example"
        np.testing.assert_array_equal(client.augment_uniforms_SBD, uniforms)
        seeds = [
            derive_key(5, "dropout", 2, client.client_id) % 2**40 + STEP_SEED_STRIDE * step for step in range(len(rows))
        ]
        assert client.dropout_seeds_S.tolist() == seeds
        fractions = np.bincount(LABELS.ids[first:last], minlength=3) / (last - first)
        ratios = (np.bincount(LABELS.ids) / 28 / np.maximum(fractions, 1e-9)).astype(np.float32)
        ratio = ratios[LABELS.ids[client.example_indices_SB]]
        np.testing.assert_array_equal(
            client.example_weights_SB, is_real * (ratio if example_weighting else np.float32(1))
        )


@pytest.mark.parametrize(
    "algorithm",
    [FEDAVG, replace(FEDAVG, client_weighting=FedNovaWeighting(), example_weighting=ImportanceReweighting())],
)
def test_a_round_without_clients_has_an_empty_plan(algorithm: Algorithm) -> None:
    rarely = replace(algorithm, sampler=PoissonSampler(1))
    assert any(
        not plan_round(rarely, POPULATION, seed=0, round=round, num_augment_uniforms=4).clients for round in range(30)
    )
