"""Every option of a component has its bounds, and an error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from manyeyes.components import (
    SGD,
    Adam,
    AdaptiveServer,
    CenteredClipping,
    EpochBatching,
    FedDynCorrection,
    GeometricMedian,
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
    *[(UniformSampler, {"cohort_size": bad}, "cohort_size") for bad in (0, -1)],
    *[(SizeWeightedSampler, {"cohort_size": bad}, "cohort_size") for bad in (0, -1)],
    *[(EpochBatching, {"epochs": bad, "batch_size": 1}, "epochs") for bad in (0, -1)],
    *[(EpochBatching, {"epochs": 1, "batch_size": bad}, "batch_size") for bad in (0, -1)],
    (EpochBatching, {"epochs": 1, "batch_size": 1, "max_examples": -1}, "max_examples"),
    *[(VirtualClientBatching, {"virtual_client_size": bad, "batch_size": 1}, "virtual_client_size") for bad in (0, -1)],
    *[(VirtualClientBatching, {"virtual_client_size": 1, "batch_size": bad}, "batch_size") for bad in (0, -1)],
    *[(SGD, {"lr": bad}, "lr") for bad in POSITIVES],
    *[(SGD, {"lr": 1, "momentum": bad}, "momentum") for bad in FRACTIONS],
    *[(SGD, {"lr": 1, "weight_decay": bad}, "weight_decay") for bad in NOT_NEGATIVES],
    *[(SGD, {"lr": 1, "max_grad_norm": bad}, "max_grad_norm") for bad in NOT_NEGATIVES],
    *[(Adam, {"lr": bad}, "lr") for bad in POSITIVES],
    *[(Adam, {"lr": 1, "beta1": bad}, "beta1") for bad in FRACTIONS],
    *[(Adam, {"lr": 1, "beta2": bad}, "beta2") for bad in FRACTIONS],
    *[(Adam, {"lr": 1, "eps": bad}, "eps") for bad in POSITIVES],
    *[(Adam, {"lr": 1, "weight_decay": bad}, "weight_decay") for bad in NOT_NEGATIVES],
    *[(Adam, {"lr": 1, "max_grad_norm": bad}, "max_grad_norm") for bad in NOT_NEGATIVES],
    *[(ServerSGD, {"lr": bad}, "server_optimizer.lr") for bad in POSITIVES],
    *[(ServerSGD, {"momentum": bad}, "server_optimizer.momentum") for bad in FRACTIONS],
    (AdaptiveServer, {"variant": "sgd"}, "sgd"),
    *[(AdaptiveServer, {"lr": bad}, "server_optimizer.lr") for bad in POSITIVES],
    *[(AdaptiveServer, {"beta1": bad}, "server_optimizer.beta1") for bad in FRACTIONS],
    *[(AdaptiveServer, {"beta2": bad}, "server_optimizer.beta2") for bad in FRACTIONS],
    *[(AdaptiveServer, {"tau": bad}, "server_optimizer.tau") for bad in POSITIVES],
    (AdaptiveServer, {"variant": "adagrad", "bias_correction": True}, "adagrad"),
    *[(ProximalTerm, {"mu": bad}, "correction.mu") for bad in POSITIVES],
    *[(FedDynCorrection, {"alpha": bad}, "correction.alpha") for bad in POSITIVES],
    *[(CenteredClipping, {"radius": bad}, "aggregator.radius") for bad in POSITIVES],
    (CenteredClipping, {"iterations": 0}, "aggregator.iterations"),
    (GeometricMedian, {"iterations": 0}, "aggregator.iterations"),
    *[(GeometricMedian, {"smoothing": bad}, "aggregator.smoothing") for bad in POSITIVES],
    *[(MimeLiteMomentum, {"momentum": bad}, "correction.momentum") for bad in FRACTIONS],
    (MatchingLayers, {"patterns": ()}, "pattern"),
]


@pytest.mark.parametrize(("component", "options", "message"), BAD)
def test_an_option_out_of_bounds_is_refused_by_name(component: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        component(**options)
    assert "\n" not in str(error.value)
    assert ". " not in str(error.value)


HALVES = [
    (UniformSampler, {"cohort_size": 2.5}),
    (SizeWeightedSampler, {"cohort_size": 2.5}),
    (EpochBatching, {"epochs": 1.5, "batch_size": 2}),
    (EpochBatching, {"epochs": 1, "batch_size": 2.5}),
    (EpochBatching, {"epochs": 1, "batch_size": 2, "max_examples": 2.5}),
    (VirtualClientBatching, {"virtual_client_size": 2.5, "batch_size": 2}),
    (VirtualClientBatching, {"virtual_client_size": 2, "batch_size": 2.5}),
]


@pytest.mark.parametrize(("component", "options"), HALVES)
def test_a_count_that_is_not_whole_is_refused(component: type, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\d\.5"):
        component(**options)
