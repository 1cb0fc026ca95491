"""Games of the ranks engine and of the reference, among the same few people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithm import Algorithm, State
from manyeyes.algorithms import fedavg
from manyeyes.data.augment import Augment
from manyeyes.engine.ranks import Ranks
from manyeyes.engine.reference import Reference
from manyeyes.engine.workers import available
from manyeyes.models import build
from manyeyes.models.flat import FlatModel
from manyeyes.parts import Everyone
from manyeyes.population import Population, SingleLabels
from manyeyes.round import plan_round, play_round, start
from manyeyes.work import Aggregate, ClientStore, Engine, Work

NEEDS_WORKERS = pytest.mark.skipif(available() is not None, reason=f"no workers: {available()}")
CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 8, 8, 3), np.uint8)
PEOPLE = Population.of(IMAGES, SingleLabels(RNG.integers(0, 3, 60), tuple("abc")), RNG.integers(0, 7, 60))
SHAKE = Augment(pad=1, flip_horizontal=True)
FEDAVG = replace(fedavg(batch=4, lr=0.1), cohort=Everyone())


def lenet() -> nn.Module:
    return build("lenet", 3, size=8, width=4, seed=0)


def linear() -> nn.Module:
    return build("linear", 3, size=8, seed=0)


def ranks(
    module: nn.Module,
    workers: int = 2,
    people: Population = PEOPLE,
    augment: Augment = SHAKE,
    precision: str = "float32",
) -> Ranks:
    return Ranks(FlatModel(module), people, augment, CPU, workers, precision)


def game(
    algorithm: Algorithm,
    engine: Engine,
    state: State,
    rounds: int,
    people: Population = PEOPLE,
    clients: ClientStore | None = None,
) -> tuple[State, ClientStore]:
    clients = {} if clients is None else clients
    for _ in range(rounds):
        state, _ = play_round(algorithm, state, people, engine, clients, seed=0)
    return state, clients


def begin(algorithm: Algorithm, module: nn.Module) -> State:
    model = FlatModel(module)
    return start(algorithm, model.read(), model.trained)


def one_round(
    engine: Engine, module: nn.Module, algorithm: Algorithm = FEDAVG, people: Population = PEOPLE
) -> Aggregate:
    plan = plan_round(algorithm, people, 0, 0, engine.dice)
    state = begin(algorithm, module)
    work = Work(algorithm.local, algorithm.local.rate(0), algorithm.correct, state.correction, None)
    return engine.train(state.weights, plan, work, {})


def assert_same_game(
    algorithm: Algorithm,
    module: nn.Module,
    people: Population = PEOPLE,
    workers: int = 2,
    rounds: int = 2,
    precision: str = "float32",
) -> None:
    first, reference = begin(algorithm, module), Reference(FlatModel(module), people, SHAKE, CPU, precision)
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


def pids(engine: Ranks) -> list[int]:
    return [worker.pid for worker in engine._workers.values()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
