"""Games of the fast engines and of the reference, among the same people; on a CPU, without streams and graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithm import Algorithm, Report
from manyeyes.data.augment import Augment
from manyeyes.engine.choice import Means, choose_engine
from manyeyes.engine.lanes import Lanes
from manyeyes.engine.reference import Reference
from manyeyes.models import build
from manyeyes.models.cuda import for_cuda
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.parts import Everyone, Pooled
from manyeyes.population import MultiLabels, Population, SingleLabels
from manyeyes.round import play_round, start
from manyeyes.work import ClientStore

CPU = torch.device("cpu")
AUGMENT = Augment(crop=12, pad=1, flip_horizontal=True)
ENGINES = {"lanes": (3, 1), "vector": (1, 16), "both": (2, 4)}  # lanes, and clients side by side
EXCHANGED = {"both": (2, 4), "alone": (3, 1)}  # those whose layers are the ones that are made for a GPU


def crowd(multi: bool = False) -> Population:
    """Nine people of one to thirty photos."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(9), [30, 17, 16, 9, 8, 5, 2, 1, 1])
    images = rng.integers(0, 256, (len(users), 14, 14, 3), np.uint8)
    if multi:
        tags = [np.flatnonzero(rng.random(5) < 0.3).tolist() for _ in users]
        return Population.of(images, MultiLabels.of(tags, tuple("abcde")), users)
    return Population.of(images, SingleLabels(rng.integers(0, 5, len(users)), tuple("abcde")), users)


PEOPLE = crowd()


def choose(name: str, module: nn.Module, augment: Augment = Augment(), **means: Any) -> Any:  # noqa: B008
    return choose_engine(name, FlatModel(module), PEOPLE, augment, CPU, Means(**means))


def fast(flat: FlatModel, people: Population, name: str, **options: Any) -> Lanes:
    count, width = (ENGINES | EXCHANGED)[name]
    options = {"precision": "float32", "compile": False, **options}
    made = Lanes(flat, people, AUGMENT, CPU, lanes=count, width=width, **options)
    if name in EXCHANGED:
        made.model = FlatModel(for_cuda(flat.module, width > 1))
    return made


def game(
    engine: str | None,
    algorithm: Algorithm,
    module: nn.Module | None = None,
    people: Population = PEOPLE,
    **options: Any,
) -> tuple[Tensor, Report, ClientStore]:
    """Three rounds on an engine, or on the reference: how the weights moved, the last report, what clients keep."""
    if not isinstance(algorithm.cohort, Pooled):
        algorithm = replace(algorithm, cohort=Everyone())
    else:
        people = people.pooled()
    flat = FlatModel(with_seeded_dropout(module or build("lenet", 5, size=12, width=4)))
    made = fast(flat, people, engine, **options) if engine else Reference(flat, people, AUGMENT, CPU, **options)
    begin = flat.read()
    state, clients = start(algorithm, begin, flat.trained), dict[int, Any]()
    for _ in range(3):
        state, report = play_round(algorithm, state, people, made, clients, seed=3)
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
    assert (other.loss, other.norm) == pytest.approx((report.loss, report.norm), rel=1e-5)
    assert keeps.keys() == kept.keys()
    for user, things in kept.items():
        assert keeps[user].keys() == things.keys()
        for name, tensor in things.items():
            torch.testing.assert_close(keeps[user][name], tensor, rtol=1e-4, atol=1e-6)
