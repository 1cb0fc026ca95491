"""Formulas of cost, checked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from manyeyes.algorithms import ditto, fedadam, fedavg, fedper, fedvc, mimelite, scaffold
from manyeyes.components import SGD, Adam, AllClients, EpochBatching, Median, TopK
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.cost.formulas import (
    Cluster,
    ModelSize,
    Throughput,
    client_cost,
    client_disk,
    client_memory,
    group_seconds,
    mean_round,
    reduce_seconds,
    server_memory,
)
from manyeyes.cost.measure import blank_population
from manyeyes.engines.load_balancing import ClientCost

BANDWIDTH = 1000.0
MODEL = ModelSize(num_parameters=100, num_trainable=90, num_personal=20, activation_bytes=7000, batch_bytes=500)
SLOW_CLUSTER = Cluster(Throughput(0, 0, 1.0), BANDWIDTH)  # 1 s per image


def make_population(*num_examples: int) -> Population:
    return blank_population(np.array(num_examples), (8, 8, 3), 3)


@pytest.mark.parametrize(
    ("algorithm", "steps", "images"),
    [
        (fedavg(epochs=2, batch_size=16), [2, 4], [2, 40]),  # of 1 and 20 examples
        (replace(fedavg(), batching=EpochBatching(2, 16, max_examples=10)), [2, 2], [2, 20]),
        (fedvc(virtual_client_size=30, batch_size=16), [2, 2], [30, 30]),
        (mimelite(epochs=2, batch_size=16), [2, 4], [2 + 1, 40 + 20]),  # every example once more
        (ditto(epochs=1, batch_size=16), [2, 4], [2, 40]),  # two models
    ],
)
def test_client_cost_counts_steps_and_images(algorithm: Algorithm, steps: list[int], images: list[int]) -> None:
    costs = client_cost(algorithm, np.array([1, 20]))
    assert [cost.tolist() for cost in costs] == [steps, images]


def test_throughput_gives_seconds_of_clients() -> None:
    assert Throughput(5.0, 2.0, 0.5).seconds(np.array([2, 4]), np.array([2, 40])).tolist() == [10.0, 33.0]


def test_an_all_reduce_sends_all_parameters_nearly_twice() -> None:
    """100 floats of 4 bytes over 1,000 bytes a second."""
    assert reduce_seconds(MODEL, 1, BANDWIDTH) == 0
    assert reduce_seconds(MODEL, 2, BANDWIDTH) == pytest.approx(0.4)
    assert reduce_seconds(MODEL, 4, BANDWIDTH) == pytest.approx(0.6)


def test_a_group_splits_every_batch_and_has_an_all_reduce_in_each_step() -> None:
    """10 steps of 16 images, on 3 ranks: 6 at most for each."""
    seconds = group_seconds(ClientCost(10, 160), 3, MODEL, Cluster(Throughput(1.0, 2.0, 0.5), BANDWIDTH))
    assert seconds == pytest.approx(1 + 10 * (2 + 0.5 * 6 + 2 * 2 / 3 * 0.4))


def test_a_round_waits_for_its_slowest_rank() -> None:
    """Users of 1, 2, 3 and 10 examples in steps of 1, 1 s per image: two ranks have 10 and 6 s, and idle 4 of 20."""
    algorithm, population = replace(fedavg(batch_size=1), sampler=AllClients()), make_population(1, 2, 3, 10)
    cost = mean_round(algorithm, population, MODEL, SLOW_CLUSTER, 2, rounds=2)
    assert (cost.clients, cost.images) == (4, 16)
    assert cost.seconds == pytest.approx(10 + 0.4)
    assert cost.idle_fraction == pytest.approx(0.2)
    assert cost.single_client == 1
    alone = mean_round(algorithm, population, MODEL, SLOW_CLUSTER, 1, rounds=1)
    assert (alone.seconds, alone.idle_fraction, alone.single_client) == (16, 0, 0)


def test_a_group_shortens_a_round() -> None:
    """One client of 8 steps of 4: 32 s alone; 16 s on two ranks, and 0.4 s of all-reduce per step and per round."""
    algorithm = replace(fedavg(epochs=8, batch_size=4), sampler=AllClients())
    cluster = replace(SLOW_CLUSTER, allreduce_cost=0.0)
    cost = mean_round(algorithm, make_population(4), MODEL, cluster, 2, rounds=1)
    assert cost.seconds == pytest.approx(16 + 8 * 0.4 + 0.4)
    assert (cost.idle_fraction, cost.single_client) == (0, 0)


@pytest.mark.parametrize(
    ("algorithm", "num_floats"),
    [
        (fedavg(), 200),  # the weights and their sum
        (fedadam(), 200 + 2 * 90),
        (scaffold(), 200 + 90),
        (replace(fedavg(), aggregator=Median()), 200 + 50 * 100),
    ],
)
def test_server_memory(algorithm: Algorithm, num_floats: int) -> None:
    assert server_memory(algorithm, MODEL, num_clients=50) == 4 * num_floats


@pytest.mark.parametrize(
    ("algorithm", "num_floats"),
    [
        (fedavg(), 0),
        (fedper(), 0),
        (scaffold(), 90),
        (mimelite(), 0),
        (ditto(), 100),
        (replace(fedavg(), client_optimizer=SGD(0.1, momentum=0.9, persist_state=True)), 90),
        (
            replace(fedavg(), client_optimizer=Adam(0.1, persist_state=True)),
            2 * 90 + 1,
        ),  # two moments, and how many steps
        (
            replace(ditto(), client_optimizer=SGD(0.1, momentum=0.9, persist_state=True)),
            100 + 2 * 90,
        ),  # a momentum of each model
        (replace(fedavg(), compressor=TopK(0.1)), 80),
    ],
)
def test_client_disk(algorithm: Algorithm, num_floats: int) -> None:
    """The model has 20 personal parameters, which clients keep too."""
    assert client_disk(algorithm, MODEL) == 4 * (20 + num_floats)


def test_client_memory() -> None:
    """Two sets of weights, a gradient, a momentum and personal parameters; a batch and its activations."""
    algorithm = replace(fedavg(), client_optimizer=SGD(0.1, momentum=0.9))
    assert client_memory(algorithm, MODEL) == 4 * (100 + 100 + 90 + 90 + 20) + 500 + 7000
