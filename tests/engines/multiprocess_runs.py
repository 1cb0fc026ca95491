"""Games of the ranks engine and of the reference, among the same few people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.components import AllClients
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import CohortResult, MutableClientStates, RoundContext, ServerState, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from manyeyes.engines.multiprocess.worker import available
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel

NEEDS_WORKERS = pytest.mark.skipif(available() is not None, reason=f"no workers: {available()}")
CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 8, 8, 3), np.uint8)
PEOPLE = Population.from_arrays(IMAGES, SingleLabels(RNG.integers(0, 3, 60), tuple("abc")), RNG.integers(0, 7, 60))
SHAKE = Preprocess(pad=1, flip_horizontal=True)
FEDAVG = replace(fedavg(batch_size=4, lr=0.1), sampler=AllClients())


def lenet() -> nn.Module:
    return build_model("lenet", 3, size=8, width=4, seed=0)


def linear() -> nn.Module:
    return build_model("linear", 3, size=8, seed=0)


def ranks(
    module: nn.Module,
    workers: int = 2,
    people: Population = PEOPLE,
    augment: Preprocess = SHAKE,
    precision: str = "float32",
) -> MultiprocessEngine:
    return MultiprocessEngine(FlatModel(module), people, augment, CPU, workers, precision)


def game(
    algorithm: Algorithm,
    engine: Engine,
    state: ServerState,
    rounds: int,
    people: Population = PEOPLE,
    clients: MutableClientStates | None = None,
) -> tuple[ServerState, MutableClientStates]:
    clients = {} if clients is None else clients
    for _ in range(rounds):
        state, _ = run_round(algorithm, state, people, engine, clients, seed=0)
    return state, clients


def begin(algorithm: Algorithm, module: nn.Module) -> ServerState:
    model = FlatModel(module)
    return init_state(algorithm, model.read(), model.num_trainable)


def one_round(
    engine: Engine, module: nn.Module, algorithm: Algorithm = FEDAVG, people: Population = PEOPLE
) -> CohortResult:
    plan = plan_round(algorithm, people, 0, 0, engine.num_augment_uniforms)
    state = begin(algorithm, module)
    work = RoundContext(
        algorithm.client_optimizer,
        algorithm.client_optimizer.learning_rate(0),
        algorithm.correction,
        state.correction_state,
        None,
    )
    return engine.train(state.weights, plan, work, {})


def assert_same_game(
    algorithm: Algorithm,
    module: nn.Module,
    people: Population = PEOPLE,
    workers: int = 2,
    rounds: int = 2,
    precision: str = "float32",
) -> None:
    first, reference = begin(algorithm, module), ReferenceEngine(FlatModel(module), people, SHAKE, CPU, precision)
    expected, kept = game(algorithm, reference, first, rounds, people)
    with ranks(module, workers, people, precision=precision) as engine:
        found, keeps = game(algorithm, engine, first, rounds, people)
    assert_alike(module, found.weights, expected.weights)
    assert list(keeps) == list(kept)
    for key, own in kept.items():
        for name, tensor in own.items():
            torch.testing.assert_close(keeps[key][name], tensor, rtol=1e-4, atol=1e-5)


def assert_alike(module: nn.Module, found: Tensor, expected: Tensor) -> None:
    """Each parameter's update within 1e-5 of its length."""
    model = FlatModel(module)
    first, lengths = model.read(), [int(np.prod(shape)) for shape in model.shapes.values()]
    updates = ((first - weights).split(lengths) for weights in (found, expected))
    for name, one, other in zip(model.shapes, *updates, strict=True):
        assert torch.linalg.vector_norm(one - other) <= 1e-5 * torch.linalg.vector_norm(other), name


def pids(engine: MultiprocessEngine) -> list[int]:
    return [worker.pid for worker in engine._workers.values()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
