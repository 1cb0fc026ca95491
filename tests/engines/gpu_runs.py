"""Games of the fast engines and of the reference, among the same people; on a CPU, without streams and graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.components import AllClients, Centralized
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import MutableClientStates, RoundMetrics, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.gpu.engine import GpuEngine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.engines.select import EngineOptions, choose_engine
from manyeyes.models import build_model
from manyeyes.models.fast.cuda import optimize_for_cuda
from manyeyes.models.flat import FlatModel, with_seeded_dropout

CPU = torch.device("cpu")
AUGMENT = Preprocess(crop=12, pad=1, flip_horizontal=True)
ENGINES = {"cuda_graphs": (3, 1), "vmap": (1, 16), "both": (2, 4)}  # lanes, and clients side by side
EXCHANGED = {"both": (2, 4), "alone": (3, 1)}  # those whose layers are the ones that are made for a GPU


def crowd(multi: bool = False) -> Population:
    """Nine people of one to thirty photos."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(9), [30, 17, 16, 9, 8, 5, 2, 1, 1])
    images = rng.integers(0, 256, (len(users), 14, 14, 3), np.uint8)
    if multi:
        tags = [np.flatnonzero(rng.random(5) < 0.3).tolist() for _ in users]
        return Population.from_arrays(images, MultiLabels.from_lists(tags, tuple("abcde")), users)
    return Population.from_arrays(images, SingleLabels(rng.integers(0, 5, len(users)), tuple("abcde")), users)


PEOPLE = crowd()


def choose(name: str, module: nn.Module, augment: Preprocess = Preprocess(), **means: Any) -> Any:  # noqa: B008
    return choose_engine(name, FlatModel(module), PEOPLE, augment, CPU, EngineOptions(**means))


def fast(flat: FlatModel, people: Population, name: str, **options: Any) -> GpuEngine:
    count, width = (ENGINES | EXCHANGED)[name]
    options = {"precision": "float32", "compile": False, **options}
    made = GpuEngine(flat, people, AUGMENT, CPU, num_streams=count, width=width, **options)
    if name in EXCHANGED:
        made.model = FlatModel(optimize_for_cuda(flat.module, width > 1))
    return made


def game(
    engine: str | None,
    algorithm: Algorithm,
    module: nn.Module | None = None,
    people: Population = PEOPLE,
    **options: Any,
) -> tuple[Tensor, RoundMetrics, MutableClientStates]:
    """Three rounds on an engine, or on the reference: how the weights moved, the last report, what clients keep."""
    if not isinstance(algorithm.sampler, Centralized):
        algorithm = replace(algorithm, sampler=AllClients())
    else:
        people = people.pooled()
    flat = FlatModel(with_seeded_dropout(module or build_model("lenet", 5, size=12, width=4)))
    made = fast(flat, people, engine, **options) if engine else ReferenceEngine(flat, people, AUGMENT, CPU, **options)
    begin = flat.read()
    state, clients = init_state(algorithm, begin, flat.num_trainable), dict[int, Any]()
    for _ in range(3):
        state, report = run_round(algorithm, state, people, made, clients, seed=3)
    assert torch.equal(flat.read(), begin)
    return begin - state.weights, report, clients


def far(found: Tensor, wanted: Tensor) -> float:
    return float(torch.linalg.vector_norm(found - wanted) / torch.linalg.vector_norm(wanted).clamp_min(1e-12))


def assert_same(
    engine: str, algorithm: Algorithm, module: nn.Module | None = None, people: Population = PEOPLE
) -> None:
    wanted, report, kept = game(None, algorithm, module, people)
    found, other, keeps = game(engine, algorithm, module, people)
    assert far(found, wanted) < 1e-5
    assert (other.loss, other.update_norm) == pytest.approx((report.loss, report.update_norm), rel=1e-5)
    assert keeps.keys() == kept.keys()
    for user, things in kept.items():
        assert keeps[user].keys() == things.keys()
        for name, tensor in things.items():
            torch.testing.assert_close(keeps[user][name], tensor, rtol=1e-4, atol=1e-6)
