"""Every number that a person can give a part has its bounds, and a sentence that names it."""

from __future__ import annotations

from typing import Any

import pytest

from manyeyes.components import (
    SGD,
    Adam,
    AdaptiveServer,
    EpochBatching,
    MatchingLayers,
    MimeLiteMomentum,
    ProximalTerm,
    ServerSGD,
    SizeWeightedSampler,
    UniformSampler,
    VirtualClientBatching,
)

NAN, INF = float("nan"), float("inf")
FRACTIONS = [-0.1, 1.0, 1.1, NAN, INF]
POSITIVES = [0.0, -1.0, NAN, INF]
NOT_NEGATIVES = [-1.0, NAN, INF]

BAD = [
    *[(UniformSampler, {"clients": bad}, "cohort") for bad in (0, -1)],
    *[(SizeWeightedSampler, {"clients": bad}, "cohort") for bad in (0, -1)],
    *[(EpochBatching, {"epochs": bad, "batch": 1}, "epochs") for bad in (0, -1)],
    *[(EpochBatching, {"epochs": 1, "batch": bad}, "batch") for bad in (0, -1)],
    (EpochBatching, {"epochs": 1, "batch": 1, "limit": -1}, "limit"),
    *[(VirtualClientBatching, {"examples": bad, "batch": 1}, "examples") for bad in (0, -1)],
    *[(VirtualClientBatching, {"examples": 1, "batch": bad}, "batch") for bad in (0, -1)],
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
    (AdaptiveServer, {"rule": "sgd"}, "sgd"),
    *[(AdaptiveServer, {"lr": bad}, "server lr") for bad in POSITIVES],
    *[(AdaptiveServer, {"beta1": bad}, "server beta1") for bad in FRACTIONS],
    *[(AdaptiveServer, {"beta2": bad}, "server beta2") for bad in FRACTIONS],
    *[(AdaptiveServer, {"tau": bad}, "server tau") for bad in POSITIVES],
    (AdaptiveServer, {"rule": "adagrad", "bias_correction": True}, "adagrad"),
    *[(ProximalTerm, {"pull": bad}, "proximal strength") for bad in POSITIVES],
    *[(MimeLiteMomentum, {"beta": bad}, "beta") for bad in FRACTIONS],
    (MatchingLayers, {"patterns": ()}, "pattern"),
]


@pytest.mark.parametrize(("part", "numbers", "named"), BAD)
def test_refuses_a_number_out_of_bounds_by_name(part: type, numbers: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named) as error:
        part(**numbers)
    message = str(error.value)
    assert "\n" not in message
    assert ". " not in message


HALVES = [
    (UniformSampler, {"clients": 2.5}),
    (SizeWeightedSampler, {"clients": 2.5}),
    (EpochBatching, {"epochs": 1.5, "batch": 2}),
    (EpochBatching, {"epochs": 1, "batch": 2.5}),
    (EpochBatching, {"epochs": 1, "batch": 2, "limit": 2.5}),
    (VirtualClientBatching, {"examples": 2.5, "batch": 2}),
    (VirtualClientBatching, {"examples": 2, "batch": 2.5}),
]


@pytest.mark.parametrize(("part", "numbers"), HALVES)
def test_refuses_half_a_thing(part: type, numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\d\.5"):
        part(**numbers)
