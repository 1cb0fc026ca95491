"""Hostile clients in runs that train: the accuracy stays within five points of the run without them."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.hostile_clients import ABSENT, STRIPES, Federation, Outcome, train

ALGORITHMS = {  # settings in addition to those of the benchmark
    "fedavg": "",
    "scaffold": "algorithm=scaffold algorithm.lr=0.1",
    "feddyn": "algorithm=feddyn",
}


@cache
def outcome(attack: str, num_clients: int = 4, num_hostile: int = 1, algorithm: str = "fedavg") -> Outcome:
    settings = f"{STRIPES} {ALGORITHMS[algorithm]}"
    return train(None, Federation(num_clients, num_hostile, attack, settings=settings))


def assert_not_spoiled(hostile: Outcome, absent: Outcome) -> None:
    assert absent.accuracy > 0.8  # chance: 0.25
    assert hostile.accuracy > absent.accuracy - 0.05
    assert hostile.honest_left_out == 0


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["update times -10", "update times -5", "labels flipped"])
def test_one_of_four_clients_cannot_spoil_a_run(attack: str) -> None:
    assert_not_spoiled(outcome(attack), outcome(ABSENT))
    assert outcome(attack).hostile_named >= 5  # of ten rounds


@pytest.mark.slow
def test_two_of_ten_clients_cannot_spoil_a_run() -> None:
    assert_not_spoiled(outcome("claims 100,000 images, update times -5", 10, 2), outcome(ABSENT, 10, 2))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn"])
def test_what_clients_send_or_keep_for_a_correction_cannot_spoil_a_run(algorithm: str) -> None:
    hostile = outcome("update times -5", algorithm=algorithm)  # and what it uploads
    assert_not_spoiled(hostile, outcome(ABSENT, algorithm=algorithm))
