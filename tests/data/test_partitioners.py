"""Partitioners, and the population that they make of a dataset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from manyeyes.core.population import Ints, MultiLabels, Population
from manyeyes.data import partition
from manyeyes.data.partition import ClassPartitioner, DirichletPartitioner, IIDPartitioner, repartition

LABELS = np.random.default_rng(0).integers(5, size=200)


def test_partitioners_are_the_partitions_with_their_options() -> None:
    assert np.array_equal(DirichletPartitioner(8, 0.5)(LABELS, 3), partition.dirichlet(LABELS, 8, 0.5, 3))
    assert np.array_equal(ClassPartitioner(8, 2)(LABELS, 3), partition.classes_per_client(LABELS, 8, 2, 3))
    assert np.array_equal(IIDPartitioner(8)(LABELS, 3), partition.iid(len(LABELS), 8, 3))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: DirichletPartitioner(0), "partitioner.num_clients is 0: set it to a whole number of at least 1"),
        (lambda: DirichletPartitioner(alpha=-1.0), "partitioner.alpha is -1.0: set it to a number of at least 0"),
        (lambda: ClassPartitioner(classes_per_client=0), "partitioner.classes_per_client is 0"),
    ],
)
def test_an_invalid_option_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        make()


def test_examples_without_a_client_are_left_out(population: Population) -> None:
    """Clients 0 and 1 take turns; every fourth example has no client."""

    def partitioner(labels: Ints, seed: int) -> Ints:
        return np.where(np.arange(len(labels)) % 4 == 3, -1, np.arange(len(labels)) % 2)

    clients = repartition(population, partitioner, seed=0)
    assert len(clients) == 36
    assert clients.num_examples.tolist() == [24, 12]
    assert clients.image_indices[:3].tolist() == [0, 2, 4]
    assert [clients.user_name(user) for user in range(2)] == ["0", "1"]


@pytest.mark.parametrize("owners", [np.zeros(3, int), np.zeros(48), np.full(48, -1)])
def test_a_wrong_answer_of_a_partitioner_is_refused(population: Population, owners: Any) -> None:
    with pytest.raises(ValueError, match=r"^partitioner returned an array of .*: return the number of a client"):
        repartition(population, lambda labels, seed: owners, seed=0)


def test_several_labels_per_example_are_refused(population: Population) -> None:
    labels = MultiLabels.from_lists([[0]] * len(population), ("red", "green"))
    with pytest.raises(ValueError, match=r"^partitioner needs one class per example"):
        repartition(replace(population, labels=labels), IIDPartitioner(2), seed=0)
