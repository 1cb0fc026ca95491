"""Importance ratios p(y) / q_k(y) by hand."""

from __future__ import annotations

import numpy as np
import pytest

from manyeyes.algorithms import fedavg
from manyeyes.components import ImportanceReweighting
from manyeyes.core.population import MultiLabels, Population, SingleLabels

IMAGES = np.zeros((4, 1, 1, 3), np.uint8)
POPULATION = Population.from_arrays(IMAGES, SingleLabels(np.array([0, 1, 1, 2]), ("a", "b", "c")), [0, 0, 1, 1])


def test_ratio_of_the_population_to_the_client() -> None:
    actual = ImportanceReweighting().class_weights(np.array([3, 1, 0]), np.array([2, 4, 4]))
    np.testing.assert_allclose(actual, [0.2 / 0.75, 0.4 / 0.25, 0], rtol=1e-6)


def test_ratio_of_a_given_target() -> None:
    actual = ImportanceReweighting((0.0, 0.9, 0.1)).class_weights(np.array([3, 1, 4]), np.array([1, 1, 1]))
    np.testing.assert_allclose(actual, [0, 0.9 / 0.125, 0.1 / 0.5], rtol=1e-6)


def test_refuses_several_labels_an_example() -> None:
    tagged = Population.from_arrays(
        IMAGES, MultiLabels.from_lists([[0], [], [1, 2], [2]], ("a", "b", "c")), [0, 0, 1, 1]
    )
    assert "one class per image" in (ImportanceReweighting().incompatibility(fedavg(), tagged) or "")


@pytest.mark.parametrize("target", [(0.5, 0.5), (0.5, 0.5, 0.5), (1.5, -0.5, 0.0), ()])
def test_refuses_a_target_that_is_no_distribution_of_the_classes(target: tuple[float, ...]) -> None:
    assert "target_distribution" in (ImportanceReweighting(target).incompatibility(fedavg(), POPULATION) or "")


def test_refuses_a_target_that_is_not_a_number() -> None:
    assert ImportanceReweighting((float("nan"), 0.5, 0.5)).incompatibility(fedavg(), POPULATION) is not None


@pytest.mark.parametrize("target", [None, (0.2, 0.3, 0.5), (0.0, 1.0, 0.0)])
def test_accepts_a_distribution(target: tuple[float, ...] | None) -> None:
    assert ImportanceReweighting(target).incompatibility(fedavg(), POPULATION) is None
