"""Learning-rate schedules against hand computations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from manyeyes.algorithms import fedavg
from manyeyes.components import Schedule, ServerSGD
from manyeyes.components.client_optimizers import resolve_schedules

BY_HAND = [
    (Schedule(), [1, 1, 1]),
    (Schedule(warmup=4), [0.25, 0.5, 0.75, 1, 1]),
    (Schedule("polynomial", rounds=4), [1, 0.75, 0.5, 0.25, 0, 0]),
    (Schedule("polynomial", rounds=4, power=2), [1, 0.5625, 0.25, 0.0625, 0]),
    (Schedule("polynomial", rounds=6, warmup=2, final=0.2), [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2]),
    (Schedule("cosine", rounds=4), [1, 0.8535533905932737, 0.5, 0.14644660940672627, 0, 0]),
    (Schedule("cosine", rounds=3, warmup=1, final=0.1), [1, 1, 0.55, 0.1]),
]


@pytest.mark.parametrize(("schedule", "factors"), BY_HAND)
def test_factor_of_each_round(schedule: Schedule, factors: list[float]) -> None:
    assert [schedule.factor(round) for round in range(len(factors))] == pytest.approx(factors, abs=1e-15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "linear"}, "linear"),
        ({"warmup": -1}, "schedule.warmup"),
        ({"power": 0.0}, "power"),
        ({"power": float("nan")}, "power"),
        ({"final": -0.1}, "final"),
        ({"final": 1.5}, "final"),
        ({"rounds": -1}, "schedule.rounds"),
        ({"kind": "polynomial", "rounds": 5, "warmup": 5}, "schedule.rounds=5"),
    ],
)
def test_an_invalid_schedule_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**options)


def test_a_schedule_of_length_0_gets_the_length_of_the_run() -> None:
    algorithm = replace(
        fedavg(schedule=Schedule("cosine")), server_optimizer=ServerSGD(schedule=Schedule("polynomial", rounds=5))
    )
    resolved: Any = resolve_schedules(algorithm, rounds=40)
    assert (resolved.client_optimizer.schedule.rounds, resolved.server_optimizer.schedule.rounds) == (40, 5)
    with pytest.raises(ValueError, match=r"schedule.rounds=0 is the whole run"):
        Schedule("cosine").factor(0)
