"""Rounds on the GPU engines and on the reference with the same users; on a CPU, without streams and graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.components import Centralized
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.core.state import MutableClientStates, RoundMetrics
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.gpu.engine import GpuEngine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.fast.cuda import optimize_for_cuda
from manyeyes.models.flat import FlatModel, with_seeded_dropout
from tests.engines.engine_runs import initial_state, make_setup, relative_error, run_rounds, with_all_clients

AUGMENT = Preprocess(crop=12, pad=1, flip_horizontal=True)
ENGINES = {"cuda_graphs": (3, 1), "vmap": (1, 16), "both": (2, 4)}  # number of streams, clients side by side
ENGINE_PARAMS = [name if name == "both" else pytest.param(name, marks=pytest.mark.slow) for name in ENGINES]
WITH_FAST_LAYERS = {"both": (2, 4), "single": (3, 1)}  # with the layers that are fast on a GPU


def make_population(multi: bool = False) -> Population:
    """Return nine users with one to thirty images each."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(9), [30, 17, 16, 9, 8, 5, 2, 1, 1])
    images = rng.integers(0, 256, (len(users), 14, 14, 3), np.uint8)
    if multi:
        tags = [np.flatnonzero(rng.random(5) < 0.3).tolist() for _ in users]
        return Population.from_arrays(images, MultiLabels.from_lists(tags, tuple("abcde")), users)
    return Population.from_arrays(images, SingleLabels(rng.integers(0, 5, len(users)), tuple("abcde")), users)


POPULATION = make_population()


def make_gpu_engine(setup: EngineSetup, name: str) -> GpuEngine:
    num_streams, width = (ENGINES | WITH_FAST_LAYERS)[name]
    engine = GpuEngine(setup, num_streams, width)
    engine.compiles = setup.options.compile
    if name in WITH_FAST_LAYERS:
        engine.model = FlatModel(optimize_for_cuda(setup.model.module, width > 1))
    return engine


def train_on(
    engine_name: str,
    algorithm: Algorithm,
    module: nn.Module | None = None,
    population: Population = POPULATION,
    num_rounds: int = 3,
    **options: Any,
) -> tuple[Tensor, RoundMetrics, MutableClientStates]:
    """Return the update of all rounds, the metrics of the last one, and the clients' states."""
    if isinstance(algorithm.sampler, Centralized):
        population = population.pooled()
    algorithm = with_all_clients(algorithm)
    model = FlatModel(with_seeded_dropout(module or build_model("lenet", 5, size=12, width=4)))
    setup = make_setup(model, population, AUGMENT, **options)
    engine = ReferenceEngine(setup) if engine_name == "reference" else make_gpu_engine(setup, engine_name)
    first = initial_state(algorithm, model)
    state, client_states, metrics = run_rounds(algorithm, engine, population, first, num_rounds, seed=3)
    assert torch.equal(model.read(), first.weights)
    return first.weights - state.weights, metrics, client_states


def assert_equals_reference(
    engine_name: str, algorithm: Algorithm, module: nn.Module | None = None, population: Population = POPULATION
) -> None:
    expected, expected_metrics, expected_states = train_on("reference", algorithm, module, population)
    actual, metrics, client_states = train_on(engine_name, algorithm, module, population)
    assert relative_error(actual, expected) < 1e-5
    assert metrics.train_loss == pytest.approx(expected_metrics.train_loss, rel=1e-5)
    assert metrics.update_norm == pytest.approx(expected_metrics.update_norm, rel=1e-5)
    assert client_states.keys() == expected_states.keys()
    for client_id, expected_state in expected_states.items():
        assert client_states[client_id].keys() == expected_state.keys()
        for name, tensor in expected_state.items():
            torch.testing.assert_close(client_states[client_id][name], tensor, rtol=1e-4, atol=1e-6)
