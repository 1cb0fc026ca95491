"""Hostile clients in runs that train: the accuracy stays within five points of the run without them."""

from __future__ import annotations

import pytest

from benchmarks.hostile_clients import ABSENT, HONEST, SETTINGS, Federation, train

QUICK = f"{SETTINGS} algorithm.batch_size=16 algorithm.lr=0.2"
ROUNDS = 7


def accuracy(attack: str, num_clients: int = 4, num_hostile: int = 1, rounds: int = ROUNDS) -> float:
    return train(None, Federation(num_clients, num_hostile, attack, settings=f"{QUICK} rounds={rounds}"))


@pytest.fixture(scope="module")
def accuracy_without_it() -> float:
    return accuracy(ABSENT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", ["update times -10", "update of length 9e5", "claims 100,000 images", "labels flipped", HONEST]
)
def test_one_of_four_clients_cannot_spoil_a_run(attack: str, accuracy_without_it: float) -> None:
    assert accuracy_without_it > 0.8  # chance: 0.25
    assert accuracy(attack) > accuracy_without_it - 0.05


@pytest.mark.slow
def test_two_of_ten_clients_cannot_spoil_a_run() -> None:
    settings = f"{SETTINGS} algorithm.lr=0.1 rounds=8"
    absent, hostile = (
        train(None, Federation(10, 2, attack, settings=settings)) for attack in (ABSENT, "update times -10")
    )
    assert absent > 0.8
    assert hostile > absent - 0.05
