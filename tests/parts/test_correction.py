"""Corrections: what they add to a gradient, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from manyeyes.algorithm import Algorithm
from manyeyes.algorithms import fedprox, mimelite, scaffold
from manyeyes.parts import SGD, Adam, ControlVariates, Layers, Proximal, ServerAdaptive, ServerMomentum, ServerSGD
from manyeyes.parts.local import corrected, descend
from manyeyes.population import Population, SingleLabels
from manyeyes.work import Work

PEOPLE = Population.of(
    torch.zeros(12, 1, 1, 3, dtype=torch.uint8).numpy(),
    SingleLabels(torch.zeros(12, dtype=torch.int64).numpy(), ("any",)),
    range(12),
)
ONES = torch.ones(3)


def test_shared_layers_alone_are_pulled_and_shifted() -> None:
    personal = torch.tensor([False, True, False])
    work = Work(SGD(0.1), 0.1, Proximal(0.5), None, personal)
    found = corrected(work, theta=3 * ONES, server=ONES, gradient=10 * ONES, shift=None)
    assert found.tolist() == [11, 10, 11]


def test_tied_personal_layers_are_pulled_too() -> None:
    work = Work(SGD(0.1), 0.1, Proximal(0.5), None, torch.tensor([False, True, False]), tied=True)
    found = corrected(work, theta=3 * ONES, server=ONES, gradient=10 * ONES, shift=None)
    assert found.tolist() == [11, 11, 11]


def test_mime_scales_the_gradient_and_adds_the_momentum_of_the_server() -> None:
    mime = ServerMomentum(0.75)
    work = Work(SGD(0.1), 0.1, mime, 8 * ONES, None)
    found = corrected(work, ONES, ONES, gradient=4 * ONES, shift=mime.shift(8 * ONES, None))
    assert found.tolist() == [7, 7, 7]


def test_clipping_comes_before_the_correction() -> None:
    work = Work(SGD(1.0, clip=5.0), 1.0, Proximal(1.0), None, None)
    theta, _ = descend(work, torch.tensor([1.0, 1.0]), torch.zeros(2), torch.tensor([6.0, 8.0]), None, ())
    torch.testing.assert_close(theta, torch.tensor([1.0 - 3 - 1, 1.0 - 4 - 1]))


def test_a_short_gradient_is_not_clipped() -> None:
    work = Work(SGD(1.0, clip=5.0), 1.0, None, None, None)
    theta, _ = descend(work, torch.zeros(2), torch.zeros(2), torch.tensor([3.0, -2.0]), None, ())
    assert theta.tolist() == [-3, 2]


def test_control_variates_change_by_the_mean_gradient_less_the_shared_one() -> None:
    own, change = ControlVariates().finish(2 * ONES, 5 * ONES, update=3 * ONES, distance=0.5, gradient=None)
    assert own.tolist() == [5 - 2 + 6] * 3
    assert change.tolist() == [-2 + 6] * 3


REFUSED = [
    replace(scaffold(), local=SGD(0.1, momentum=0.9)),
    replace(scaffold(), local=Adam(0.1)),
    replace(mimelite(), local=SGD(0.1, momentum=0.9)),
    replace(mimelite(), local=Adam(0.1)),
    replace(mimelite(), server=ServerSGD(momentum=0.9)),
    replace(mimelite(), server=ServerAdaptive()),
    replace(mimelite(), personal=Layers(("fc.*",))),
]


@pytest.mark.parametrize("algorithm", REFUSED)
def test_refuses_a_second_momentum(algorithm: Algorithm) -> None:
    with pytest.raises(ValueError, match=r"SCAFFOLD|Mime-lite"):
        algorithm.check(PEOPLE)


@pytest.mark.parametrize("algorithm", [scaffold(), mimelite(), replace(fedprox(), local=Adam(0.1))])
def test_accepts_what_has_a_meaning(algorithm: Algorithm) -> None:
    algorithm.check(PEOPLE)
