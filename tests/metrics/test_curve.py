"""Learning curves, against hand computation and table 2 of Hsu et al."""

from __future__ import annotations

from typing import Any

import pytest

from manyeyes.metrics import Curve, relative_accuracy

# 6 rounds whose largest clients took 5, 1, 1, 10, 2, 2 batches: 5, 6, 7, 17, 19, 21 in all; evaluated every 2 rounds
CURVE = Curve.from_points(rounds=[0, 2, 4, 6], values=[0.1, 0.5, 0.4, 0.7], batches=[5, 1, 1, 10, 2, 2])


@pytest.mark.parametrize(("round", "value"), [(0, 0.1), (1, 0.1), (2, 0.5), (5, 0.4), (6, 0.7), (7, None), (-1, None)])
def test_value_at_round(round: int, value: float | None) -> None:
    assert CURVE.value_at_round(round) == value


@pytest.mark.parametrize(
    ("batches", "value"), [(0, 0.1), (5, 0.1), (6, 0.5), (16, 0.5), (17, 0.4), (21, 0.7), (22, None)]
)
def test_value_at_batches(batches: int, value: float | None) -> None:
    assert CURVE.value_at_batches(batches) == value


@pytest.mark.parametrize(("target", "rounds", "batches"), [(0.1, 0, 0), (0.45, 2, 6), (0.6, 6, 21), (0.71, None, None)])
def test_cost_of_a_target(target: float, rounds: int | None, batches: int | None) -> None:
    assert (CURVE.rounds_to(target), CURVE.batches_to(target)) == (rounds, batches)


def test_nothing_is_known_before_the_first_evaluation() -> None:
    curve = Curve.from_points([3], [0.5], [4, 4, 4])
    assert (curve.value_at_round(2), curve.value_at_batches(11)) == (None, None)


def test_virtual_clients_take_four_batches_a_round() -> None:
    # table 2, Geo-3k, FedAvg with FedVC: N_VC = 256 in batches of 64; Acc@Batch 10k is Acc@Round 2.5k, 46.2
    curve = Curve.from_points([1000, 2500, 5000], [37.4, 46.2, 52.8], [4] * 5000)
    assert (curve.value_at_round(2500), curve.value_at_batches(10_000)) == (46.2, 46.2)


def test_relative_accuracy() -> None:
    assert relative_accuracy(57.2, 57.9) == pytest.approx(0.98791, abs=1e-5)
    with pytest.raises(ValueError, match="the centralized accuracy is 0"):
        relative_accuracy(0.5, 0.0)


@pytest.mark.parametrize(
    ("rounds", "values", "batches", "message"),
    [
        ([1, 2], [0.5], [1, 1], r"values has shape \(1,\) but rounds \(2,\)"),
        ([2, 1], [0.5, 0.6], [1, 1], r"rounds is \[2, 1\]"),
        ([3], [0.5], [1, 1], "rounds ends at 3 but batches has 2 rounds"),
        ([1], [0.5], [-1], "batches has -1"),
    ],
)
def test_bad_input_is_named(rounds: Any, values: Any, batches: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Curve.from_points(rounds, values, batches)
