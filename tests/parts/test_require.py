"""Every number that a person can give a part has its bounds, and a sentence that names it."""

from __future__ import annotations

from typing import Any

import pytest

from manyeyes.parts import (
    SGD,
    Adam,
    BySize,
    Epochs,
    FixedSize,
    Layers,
    Proximal,
    ServerAdaptive,
    ServerMomentum,
    ServerSGD,
    Uniform,
)

NAN, INF = float("nan"), float("inf")
FRACTIONS = [-0.1, 1.0, 1.1, NAN, INF]
POSITIVES = [0.0, -1.0, NAN, INF]
NOT_NEGATIVES = [-1.0, NAN, INF]

BAD = [
    *[(Uniform, {"clients": bad}, "cohort") for bad in (0, -1)],
    *[(BySize, {"clients": bad}, "cohort") for bad in (0, -1)],
    *[(Epochs, {"epochs": bad, "batch": 1}, "epochs") for bad in (0, -1)],
    *[(Epochs, {"epochs": 1, "batch": bad}, "batch") for bad in (0, -1)],
    (Epochs, {"epochs": 1, "batch": 1, "limit": -1}, "limit"),
    *[(FixedSize, {"examples": bad, "batch": 1}, "examples") for bad in (0, -1)],
    *[(FixedSize, {"examples": 1, "batch": bad}, "batch") for bad in (0, -1)],
    *[(SGD, {"lr": bad}, "lr") for bad in POSITIVES],
    *[(SGD, {"lr": 1, "momentum": bad}, "momentum") for bad in FRACTIONS],
    *[(SGD, {"lr": 1, "weight_decay": bad}, "weight decay") for bad in NOT_NEGATIVES],
    *[(SGD, {"lr": 1, "clip": bad}, "clip") for bad in NOT_NEGATIVES],
    *[(Adam, {"lr": bad}, "lr") for bad in POSITIVES],
    *[(Adam, {"lr": 1, "betas": (bad, 0.9)}, "beta1") for bad in FRACTIONS],
    *[(Adam, {"lr": 1, "betas": (0.9, bad)}, "beta2") for bad in FRACTIONS],
    *[(Adam, {"lr": 1, "eps": bad}, "eps") for bad in POSITIVES],
    *[(Adam, {"lr": 1, "weight_decay": bad}, "weight decay") for bad in NOT_NEGATIVES],
    *[(Adam, {"lr": 1, "clip": bad}, "clip") for bad in NOT_NEGATIVES],
    *[(ServerSGD, {"lr": bad}, "server lr") for bad in POSITIVES],
    *[(ServerSGD, {"momentum": bad}, "server momentum") for bad in FRACTIONS],
    (ServerAdaptive, {"rule": "sgd"}, "sgd"),
    *[(ServerAdaptive, {"lr": bad}, "server lr") for bad in POSITIVES],
    *[(ServerAdaptive, {"beta1": bad}, "server beta1") for bad in FRACTIONS],
    *[(ServerAdaptive, {"beta2": bad}, "server beta2") for bad in FRACTIONS],
    *[(ServerAdaptive, {"tau": bad}, "server tau") for bad in POSITIVES],
    (ServerAdaptive, {"rule": "adagrad", "bias_correction": True}, "adagrad"),
    *[(Proximal, {"pull": bad}, "proximal strength") for bad in POSITIVES],
    *[(ServerMomentum, {"beta": bad}, "beta") for bad in FRACTIONS],
    (Layers, {"patterns": ()}, "pattern"),
]


@pytest.mark.parametrize(("part", "numbers", "named"), BAD)
def test_refuses_a_number_out_of_bounds_by_name(part: type, numbers: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named) as error:
        part(**numbers)
    message = str(error.value)
    assert "\n" not in message
    assert ". " not in message


HALVES = [
    (Uniform, {"clients": 2.5}),
    (BySize, {"clients": 2.5}),
    (Epochs, {"epochs": 1.5, "batch": 2}),
    (Epochs, {"epochs": 1, "batch": 2.5}),
    (Epochs, {"epochs": 1, "batch": 2, "limit": 2.5}),
    (FixedSize, {"examples": 2.5, "batch": 2}),
    (FixedSize, {"examples": 2, "batch": 2.5}),
]


@pytest.mark.parametrize(("part", "numbers"), HALVES)
def test_refuses_half_a_thing(part: type, numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\d\.5"):
        part(**numbers)
