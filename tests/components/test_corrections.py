"""Corrections: what they add to a gradient, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from manyeyes.algorithms import feddyn, fedprox, mimelite, scaffold
from manyeyes.components import (
    SGD,
    Adam,
    AdaptiveServer,
    MatchingLayers,
    MimeLiteMomentum,
    ProximalTerm,
    ScaffoldCorrection,
    ServerSGD,
    WeightByExamples,
)
from manyeyes.components.client_optimizers import corrected_grad, local_step
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.state import RoundContext

POPULATION = Population.from_arrays(
    torch.zeros(12, 1, 1, 3, dtype=torch.uint8).numpy(),
    SingleLabels(torch.zeros(12, dtype=torch.int64).numpy(), ("any",)),
    range(12),
)
ONES = torch.ones(3)


def test_only_shared_layers_are_corrected() -> None:
    personal = torch.tensor([False, True, False])
    context = RoundContext(SGD(0.1), 0.1, ProximalTerm(0.5), None, personal)
    actual = corrected_grad(context, theta=3 * ONES, server_theta=ONES, grad=10 * ONES, offset=None)
    assert actual.tolist() == [11, 10, 11]


def test_personal_layers_are_corrected_on_request() -> None:
    context = RoundContext(
        SGD(0.1), 0.1, ProximalTerm(0.5), None, torch.tensor([False, True, False]), correct_personal_layers=True
    )
    actual = corrected_grad(context, theta=3 * ONES, server_theta=ONES, grad=10 * ONES, offset=None)
    assert actual.tolist() == [11, 11, 11]


def test_mime_scales_the_gradient_and_adds_the_momentum_of_the_server() -> None:
    mime = MimeLiteMomentum(0.75)
    context = RoundContext(SGD(0.1), 0.1, mime, 8 * ONES, None)
    actual = corrected_grad(context, ONES, ONES, grad=4 * ONES, offset=mime.offset(8 * ONES, None))
    assert actual.tolist() == [7, 7, 7]


def test_clipping_comes_before_the_correction() -> None:
    context = RoundContext(SGD(1.0, max_grad_norm=5.0), 1.0, ProximalTerm(1.0), None, None)
    theta, _ = local_step(context, torch.tensor([1.0, 1.0]), torch.zeros(2), torch.tensor([6.0, 8.0]), None, ())
    torch.testing.assert_close(theta, torch.tensor([1.0 - 3 - 1, 1.0 - 4 - 1]))


def test_a_small_gradient_is_not_clipped() -> None:
    context = RoundContext(SGD(1.0, max_grad_norm=5.0), 1.0, None, None, None)
    theta, _ = local_step(context, torch.zeros(2), torch.zeros(2), torch.tensor([3.0, -2.0]), None, ())
    assert theta.tolist() == [-3, 2]


def test_scaffold_client_state_changes_by_the_mean_gradient_minus_the_server_state() -> None:
    client_state, change = ScaffoldCorrection().client_update(
        2 * ONES, 5 * ONES, update=3 * ONES, steps_times_lr=0.5, full_gradient=None
    )
    assert client_state.tolist() == [5 - 2 + 6] * 3
    assert change.tolist() == [-2 + 6] * 3


REFUSED = [
    replace(scaffold(), client_optimizer=SGD(0.1, momentum=0.9)),
    replace(scaffold(), client_optimizer=Adam(0.1)),
    replace(mimelite(), client_optimizer=SGD(0.1, momentum=0.9)),
    replace(mimelite(), client_optimizer=Adam(0.1)),
    replace(mimelite(), server_optimizer=ServerSGD(momentum=0.9)),
    replace(mimelite(), server_optimizer=AdaptiveServer()),
    replace(feddyn(), client_weighting=WeightByExamples()),
    replace(feddyn(), server_optimizer=ServerSGD(lr=0.5)),
    replace(mimelite(), personal_layers=MatchingLayers(("fc.*",))),
]


@pytest.mark.parametrize("algorithm", REFUSED)
def test_an_invalid_combination_is_refused(algorithm: Algorithm) -> None:
    with pytest.raises(ValueError, match=r"correction=(scaffold|mimelite|feddyn)"):
        algorithm.validate(POPULATION)


@pytest.mark.parametrize(
    "algorithm", [scaffold(), mimelite(), feddyn(), replace(fedprox(), client_optimizer=Adam(0.1))]
)
def test_a_valid_combination_is_accepted(algorithm: Algorithm) -> None:
    algorithm.validate(POPULATION)
