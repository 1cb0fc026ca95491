"""Rounds on the multiprocess engine and on the reference with the same few users."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.components import AllClients
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.state import CohortResult
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from manyeyes.engines.multiprocess.worker import unsupported_machine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from tests.engines.engine_runs import CPU, initial_state, make_round_context, make_setup, run_rounds

NEEDS_WORKERS = pytest.mark.skipif(
    unsupported_machine(CPU) is not None, reason=f"workers do not support {unsupported_machine(CPU)}"
)
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 8, 8, 3), np.uint8)
POPULATION = Population.from_arrays(IMAGES, SingleLabels(RNG.integers(0, 3, 60), tuple("abc")), RNG.integers(0, 7, 60))
AUGMENT = Preprocess(pad=1, flip_horizontal=True)
FEDAVG = replace(fedavg(batch_size=4, lr=0.1), sampler=AllClients())


def lenet() -> nn.Module:
    return build_model("lenet", 3, size=8, width=4, seed=0)


def linear() -> nn.Module:
    return build_model("linear", 3, size=8, seed=0)


def make_engine(
    module: nn.Module,
    workers: int = 2,
    population: Population = POPULATION,
    preprocess: Preprocess = AUGMENT,
    **options: Any,
) -> MultiprocessEngine:
    return MultiprocessEngine(make_setup(module, population, preprocess, workers=workers, **options))


def make_reference(
    module: nn.Module, population: Population = POPULATION, preprocess: Preprocess = AUGMENT, **options: Any
) -> ReferenceEngine:
    return ReferenceEngine(make_setup(module, population, preprocess, **options))


def train_one_round(
    engine: Engine, module: nn.Module, algorithm: Algorithm = FEDAVG, population: Population = POPULATION
) -> CohortResult:
    plan = plan_round(algorithm, population, 0, 0, engine.num_augment_uniforms)
    state = initial_state(algorithm, module)
    lr = algorithm.client_optimizer.learning_rate(0)
    return engine.train(
        state.weights, plan, make_round_context(algorithm, lr, correction_state=state.correction_state), {}
    )


def assert_equals_reference(
    algorithm: Algorithm,
    module: nn.Module,
    population: Population = POPULATION,
    workers: int = 2,
    num_rounds: int = 2,
    precision: str = "float32",
) -> None:
    first = initial_state(algorithm, module)
    reference = make_reference(module, population, precision=precision)
    expected, expected_states, _ = run_rounds(algorithm, reference, population, first, num_rounds)
    with make_engine(module, workers, population, precision=precision) as engine:
        actual, client_states, _ = run_rounds(algorithm, engine, population, first, num_rounds)
    assert_weights_close(module, actual.weights, expected.weights)
    assert list(client_states) == list(expected_states)
    for client_id, expected_state in expected_states.items():
        for name, tensor in expected_state.items():
            torch.testing.assert_close(client_states[client_id][name], tensor, rtol=1e-4, atol=1e-5)


def assert_weights_close(module: nn.Module, actual: Tensor, expected: Tensor) -> None:
    """Check that each parameter's update is within 1e-5 of its norm."""
    model = FlatModel(module)
    first, sizes = model.read(), [int(np.prod(shape)) for shape in model.shapes.values()]
    actual_updates, expected_updates = ((first - weights).split(sizes) for weights in (actual, expected))
    for name, update, expected_update in zip(model.shapes, actual_updates, expected_updates, strict=True):
        error = torch.linalg.vector_norm(update - expected_update)
        assert error <= 1e-5 * torch.linalg.vector_norm(expected_update), name


def worker_pids(engine: MultiprocessEngine) -> list[int]:
    return [worker.pid for worker in engine._workers.values()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
