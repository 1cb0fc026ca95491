"""Capacity: every formula by hand, and seconds against rounds that were played."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.algorithms import ditto, fedadam, fedavg, fedper, fedvc, mimelite, scaffold
from manyeyes.components import SGD, Adam, AllClients, EpochBatching, Median, TopK
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import init_state
from manyeyes.cost.formulas import (
    ModelSize,
    Network,
    Throughput,
    client_cost,
    client_disk,
    client_memory,
    mean_round,
    reduce_seconds,
    server_memory,
    team_seconds,
)
from manyeyes.cost.measure import activation_bytes, blank_population, describe, remembered, time_clients
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.load_balancing import ClientCost
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel

CPU = torch.device("cpu")
NETWORK = Network(bandwidth=1000.0)
MODEL = ModelSize(num_parameters=100, num_trainable=90, personal=20, activations=7000, batch=500)


def people(*sizes: int) -> Population:
    images = np.broadcast_to(np.zeros((8, 8, 3), np.uint8), (sum(sizes), 8, 8, 3))
    labels = SingleLabels(np.zeros(sum(sizes), np.int64), ("a", "b", "c"))
    return Population.from_arrays(images, labels, np.repeat(np.arange(len(sizes)), sizes))


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
def test_the_work_of_clients(algorithm: Algorithm, steps: list[int], images: list[int]) -> None:
    found = client_cost(algorithm, np.array([1, 20]))
    assert [part.tolist() for part in found] == [steps, images]


def test_a_clients_seconds() -> None:
    assert Throughput(5.0, 2.0, 0.5).seconds(np.array([2, 4]), np.array([2, 40])).tolist() == [10.0, 33.0]


def test_an_all_reduce_sends_everything_nearly_twice() -> None:
    """100 floats of 4 bytes over 1,000 bytes a second."""
    assert reduce_seconds(MODEL, 1, NETWORK) == 0
    assert reduce_seconds(MODEL, 2, NETWORK) == pytest.approx(0.4)
    assert reduce_seconds(MODEL, 4, NETWORK) == pytest.approx(0.6)


def test_a_member_of_a_team_has_its_part_of_every_batch_and_an_all_reduce_a_step() -> None:
    """10 steps of 16 images by 3: 6 at most for each."""
    found = team_seconds(Throughput(1.0, 2.0, 0.5), ClientCost(10, 160), 3, MODEL, NETWORK)
    assert found == pytest.approx(1 + 10 * (2 + 0.5 * 6 + 2 * 2 / 3 * 0.4))


def test_a_round_waits_for_its_slowest_rank() -> None:
    """Users of 1, 2, 3 and 10 examples in steps of 1: 1 s an image. Two ranks have 10 and 6, and wait 4 of 20."""
    algorithm = replace(fedavg(batch_size=1), sampler=AllClients())
    found = mean_round(algorithm, people(1, 2, 3, 10), Throughput(0, 0, 1.0), MODEL, 2, NETWORK, rounds=2)
    assert (found.clients, found.images) == (4, 16)
    assert found.seconds == pytest.approx(10 + 0.4)
    assert found.idle_fraction == pytest.approx(0.2)
    assert found.longest == 1
    one = mean_round(algorithm, people(1, 2, 3, 10), Throughput(0, 0, 1.0), MODEL, 1, NETWORK, rounds=1)
    assert (one.seconds, one.idle_fraction, one.longest) == (16, 0, 0)


def test_a_team_shortens_a_round() -> None:
    """One client of 8 steps of 4: alone 32 s; by two ranks 16 s, and an all-reduce of 0.4 s a step and for the sum."""
    algorithm = replace(fedavg(epochs=8, batch_size=4), sampler=AllClients())
    found = mean_round(
        algorithm, people(4), Throughput(0, 0, 1.0), MODEL, 2, Network(1000.0, allreduce_cost=0.0), rounds=1
    )
    assert found.seconds == pytest.approx(16 + 8 * 0.4 + 0.4)
    assert (found.idle_fraction, found.longest) == (0, 0)


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
    [
        (fedavg(), 200),  # the weights and their sum
        (fedadam(), 200 + 2 * 90),
        (scaffold(), 200 + 90),
        (replace(fedavg(), aggregator=Median()), 200 + 50 * 100),
    ],
)
def test_the_servers_memory(algorithm: Algorithm, numbers: int) -> None:
    assert server_memory(algorithm, MODEL, clients=50) == 4 * numbers


@pytest.mark.parametrize(
    ("algorithm", "numbers"),
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
def test_what_a_client_keeps(algorithm: Algorithm, numbers: int) -> None:
    """Of a model with 20 personal numbers, which it keeps too."""
    assert client_disk(algorithm, MODEL) == 4 * (20 + numbers)


def test_a_clients_memory() -> None:
    """The server's weights, its own, a gradient and a momentum; personal numbers; a batch and what it leaves behind."""
    algorithm = replace(fedavg(), client_optimizer=SGD(0.1, momentum=0.9))
    assert client_memory(algorithm, MODEL) == 4 * (100 + 100 + 90 + 90 + 20) + 500 + 7000


def test_activations_by_hand() -> None:
    """A linear model keeps its images, counted apart, and the loss log-probabilities, targets and a weight."""
    model = FlatModel(build_model("linear", 3, size=8, seed=0))
    found = activation_bytes(model, torch.zeros(5, 3, 8, 8))
    assert 5 * 3 * 4 + 5 * 8 <= found <= 5 * 3 * 4 + 5 * 8 + 8
    whole = describe(model, 0, Preprocess(), (8, 8, 3), 5)
    assert (whole.num_parameters, whole.num_trainable, whole.batch) == (579, 579, 5 * 3 * 64 * 4)


def test_predicted_seconds_are_within_a_factor_of_two_of_rounds_that_were_played() -> None:
    """In the process's own time: others may use the machine."""
    algorithm = replace(fedavg(epochs=2, batch_size=8, lr=1e-3), sampler=AllClients())
    users, model = people(1, 1, 2, 3, 5, 20), FlatModel(build_model("lenet", 3, size=8, width=16, seed=0))
    pace = time_clients(algorithm, model, (8, 8, 3), Preprocess(), CPU)
    assert min(pace.client, pace.step, pace.image) >= 0
    predicted = mean_round(algorithm, users, pace, describe(model, 0, Preprocess(), (8, 8, 3), 8), 1, NETWORK).seconds
    engine, state = (
        ReferenceEngine(EngineSetup(model, users, Preprocess(), CPU)),
        init_state(algorithm, model.read(), model.num_trainable),
    )
    seconds = []
    for _ in range(5):
        began = time.process_time()
        state, _ = run_round(algorithm, state, users, engine, {}, seed=0)
        seconds.append(time.process_time() - began)
    assert 0.5 < predicted / np.median(seconds) < 2


def test_a_measurement_is_remembered(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paces = iter([Throughput(1.0, 2.0, 3.0), Throughput(4.0, 5.0, 6.0), Throughput(7.0, 8.0, 9.0)])
    assert remembered("one", lambda: next(paces)) == Throughput(1.0, 2.0, 3.0)
    assert remembered("one", lambda: next(paces)) == Throughput(1.0, 2.0, 3.0)
    assert remembered("two", lambda: next(paces)) == Throughput(4.0, 5.0, 6.0)
    assert remembered("one", lambda: next(paces), anew=True) == Throughput(7.0, 8.0, 9.0)
    (tmp_path / "manyeyes" / "pace.json").write_text("not json")
    assert remembered("two", lambda: Throughput(0.0, 0.0, math.pi)) == Throughput(0.0, 0.0, math.pi)


def test_blank_photos_take_no_room() -> None:
    assert blank_population(1000, 100, (256, 256, 3), 2).images.strides[0] == 0
