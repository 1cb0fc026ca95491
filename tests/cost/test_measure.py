"""Throughput, model sizes and their cache, against rounds that really ran."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from manyeyes.algorithms import fedavg
from manyeyes.components import AllClients
from manyeyes.core.round import run_round
from manyeyes.core.state import init_state
from manyeyes.cost.formulas import Cluster, Throughput, mean_round
from manyeyes.cost.measure import (
    activation_bytes,
    blank_population,
    cached_throughput,
    measure_throughput,
    model_size,
)
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel

CPU = torch.device("cpu")


def test_activations_by_hand() -> None:
    """Apart from its images, a linear model keeps what the loss needs: log-probabilities, targets and a weight."""
    model = FlatModel(build_model("linear", 3, size=8, seed=0))
    num_bytes = activation_bytes(model, torch.zeros(5, 3, 8, 8))
    assert 5 * 3 * 4 + 5 * 8 <= num_bytes <= 5 * 3 * 4 + 5 * 8 + 8
    size = model_size(model, 0, 5, (8, 8))
    assert (size.num_parameters, size.num_trainable, size.batch_bytes) == (579, 579, 5 * 3 * 64 * 4)


def test_batches_of_grey_images_take_a_third() -> None:
    model = FlatModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)))
    assert model_size(model, 0, 5, (8, 8), channels=1).batch_bytes == 5 * 64 * 4


@pytest.mark.slow
def test_predicted_seconds_are_within_a_factor_of_two_of_measured_rounds() -> None:
    """Both are CPU time of this process, since others may use the machine."""
    algorithm = replace(fedavg(epochs=2, batch_size=8, lr=1e-3), sampler=AllClients())
    population = blank_population(np.array([1, 1, 2, 3, 5, 20]), (8, 8, 3), 3)
    model = FlatModel(build_model("lenet", 3, size=8, width=16, seed=0))
    throughput = measure_throughput(algorithm, model, population, Preprocess(), CPU)
    assert min(throughput.per_client, throughput.per_step, throughput.per_image) >= 0
    size = model_size(model, 0, 8, (8, 8))
    predicted = mean_round(algorithm, population, size, Cluster(throughput, bandwidth=1000.0), 1).seconds
    engine = ReferenceEngine(EngineSetup(model, population, Preprocess(), CPU))
    state = init_state(algorithm, model.read(), model.num_trainable)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        state, _ = run_round(algorithm, state, population, engine, {}, seed=0)
        seconds.append(time.process_time() - start)
    assert 0.5 < predicted / np.median(seconds) < 2


def test_a_measurement_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = iter([Throughput(1.0, 2.0, 3.0), Throughput(4.0, 5.0, 6.0), Throughput(7.0, 8.0, 9.0)])
    assert cached_throughput("one", lambda: next(measured)) == Throughput(1.0, 2.0, 3.0)
    assert cached_throughput("one", lambda: next(measured)) == Throughput(1.0, 2.0, 3.0)
    assert cached_throughput("two", lambda: next(measured)) == Throughput(4.0, 5.0, 6.0)
    assert cached_throughput("one", lambda: next(measured), refresh=True) == Throughput(7.0, 8.0, 9.0)
    (tmp_path / "manyeyes" / "throughput.json").write_text("not json")
    assert cached_throughput("two", lambda: Throughput(0.0, 0.0, math.pi)) == Throughput(0.0, 0.0, math.pi)


def test_blank_images_take_no_memory() -> None:
    assert blank_population(np.full(1000, 100), (256, 256, 3), 2).images.strides[0] == 0
