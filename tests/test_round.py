"""The plan of a round: what chance decides for each client, whoever else takes part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from manyeyes.algorithm import Algorithm
from manyeyes.algorithms import fedavg
from manyeyes.chance import generator, key
from manyeyes.parts import ByWalk, Epochs, Everyone, FixedSize, ImportanceRatio, Poisson
from manyeyes.population import Population, SingleLabels
from manyeyes.round import STRIDE, plan_round

OFFSETS = np.cumsum([0, 1, 7, 3, 12, 5])
LABELS = SingleLabels(np.arange(28) % 3, ("a", "b", "c"))
PEOPLE = Population(np.zeros((28, 4, 4, 3), np.uint8), LABELS, OFFSETS, np.array([10, 20, 30, 40, 50]), np.arange(28))
FEDAVG = replace(fedavg(cohort=3), draw=Epochs(2, 4, limit=6))


def test_draws_never_change() -> None:
    """Saved from when each client had a generator and arrays of its own: a run of then goes on as it was."""
    plan = plan_round(FEDAVG, PEOPLE, seed=7, round=3, dice=1)
    assert [(client.key, client.size, client.weight, client.images) for client in plan.clients] == [
        (50, 5, 5.0, 10),
        (10, 1, 1.0, 2),
        (40, 6, 6.0, 12),
    ]
    assert [client.rows_SB.tolist() for client in plan.clients] == [
        [[26, 25, 24, 23], [27, -1, -1, -1], [25, 24, 23, 26], [27, -1, -1, -1]],
        [[0, -1, -1, -1], [0, -1, -1, -1]],
        [[19, 15, 11, 20], [17, 12, -1, -1], [19, 15, 11, 12], [20, 17, -1, -1]],
    ]
    assert [int(client.seeds_S[-1]) for client in plan.clients] == [999069321652, 1091552210046, 529749619393]
    dice = [client.dice_SBD[-1, 0, 0] for client in plan.clients if client.dice_SBD is not None]
    np.testing.assert_array_equal(dice, np.float32([0.8933207392692566, 0.6842814087867737, 0.7007142305374146]))


@pytest.mark.parametrize("draw", [Epochs(1, 4), Epochs(2, 5, limit=6), Epochs(1, 2, head=1), FixedSize(6, 4)])
@pytest.mark.parametrize("reweigh", [None, ImportanceRatio()])
def test_every_client_draws_from_its_own_generators(draw: Epochs | FixedSize, reweigh: ImportanceRatio | None) -> None:
    algorithm = replace(FEDAVG, cohort=Everyone(), draw=draw, reweigh=reweigh)
    for client in plan_round(algorithm, PEOPLE, seed=5, round=2, dice=4).clients:
        first, last = OFFSETS[client.user : client.user + 2]
        rows = draw.rows(int(last - first), generator(5, "draw", 2, client.key))
        real = rows >= 0
        np.testing.assert_array_equal(client.rows_SB, np.where(real, first + rows, -1))
        dice = generator(5, "augment", 2, client.key).random((*rows.shape, 4), np.float32)
        assert client.dice_SBD is not None
        np.testing.assert_array_equal(client.dice_SBD, dice)
        seeds = [key(5, "dropout", 2, client.key) % 2**40 + STRIDE * step for step in range(len(rows))]
        assert client.seeds_S.tolist() == seeds
        own = np.bincount(LABELS.ids[first:last], minlength=3) / (last - first)
        ratio = np.float32(np.bincount(LABELS.ids) / 28 / np.maximum(own, 1e-9))[LABELS.ids[client.rows_SB]]
        np.testing.assert_array_equal(client.weights_SB, real * (ratio if reweigh else np.float32(1)))


@pytest.mark.parametrize("algorithm", [FEDAVG, replace(FEDAVG, weigh=ByWalk(), reweigh=ImportanceRatio())])
def test_a_round_of_nobody_is_planned(algorithm: Algorithm) -> None:
    seldom = replace(algorithm, cohort=Poisson(1))
    assert any(not plan_round(seldom, PEOPLE, seed=0, round=round, dice=4).clients for round in range(30))
