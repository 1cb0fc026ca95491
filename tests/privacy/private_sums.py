"""Sums in which everybody's share can be seen, and what a private sum is held to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from torch import Tensor, nn

from manyeyes.components import SGD, EpochBatching, PoissonSampler, ServerSGD, WeightUniformly
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.state import CohortResult, RoundContext
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.select import EngineOptions, choose_engine
from manyeyes.models.flat import FlatModel
from tests.engines.multiprocess_runs import NEEDS_WORKERS

FALSE_ALARM = 1e-6
SIDE = 10  # pixels; every user owns one of them, so that what each has added can be read off a sum
USERS = SIDE * SIDE
PLAIN = Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))  # black is 0, which has no gradient
ENGINES = ["reference", "vmap", "cuda_graphs", pytest.param("multiprocess", marks=NEEDS_WORKERS)]
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(3 * USERS, 2, bias=False))
FEDAVG = Algorithm(PoissonSampler(20), EpochBatching(1, 2), SGD(0.1), WeightUniformly(), ServerSGD(1.0))


def owners_of_pixels() -> Population:
    """Users of one to three images, each with light in its own pixel alone."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(USERS), rng.integers(1, 4, USERS))
    images = np.zeros((len(owner), USERS, 3), np.uint8)
    images[np.arange(len(owner)), owner] = rng.integers(1, 256, (len(owner), 3))
    labels = SingleLabels(rng.integers(0, 2, len(owner)), ("day", "night"))
    return Population.from_arrays(images.reshape(-1, SIDE, SIDE, 3), labels, owner)


POPULATION = owners_of_pixels()


def shares(update_W: Tensor) -> Tensor:
    """The length of what each user has added to a sum [users]."""
    return torch.linalg.vector_norm(update_W.view(2, 3, USERS), dim=(0, 1))


@contextmanager
def ready(name: str) -> Iterator[Engine]:
    engine = choose_engine(
        name, FlatModel(LINEAR), POPULATION, PLAIN, torch.device("cpu"), EngineOptions(compile=False, workers=2)
    )
    with ExitStack() as stack:
        if name == "multiprocess":
            stack.enter_context(engine)  # type: ignore[arg-type]
        yield engine


def settled(privacy: Any, rounds: int = 10, **slots: Any) -> Algorithm:
    algorithm = replace(FEDAVG, **slots)
    return replace(algorithm, privacy=privacy.calibrate(algorithm, POPULATION, rounds))


def result_of(update_W: Tensor, norms: Any = (), kept: Any = None) -> tuple[CohortResult, RoundPlan, RoundContext]:
    """What an engine might have returned for clients of these norms."""
    norm_K = np.asarray(norms, float)
    kept_K = np.ones(len(norm_K), bool) if kept is None else np.asarray(kept)
    row, seed = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    one = ClientPlan(0, 0, 1, 1.0, row, np.ones((1, 1), np.float32), None, seed, None, None)
    clients = tuple(replace(one, user=k, client_id=k) for k in range(len(norm_K)))
    work = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None)
    return CohortResult(update_W, None, kept_K, np.zeros(len(norm_K)), norm_K, {}), RoundPlan(0, 0, clients), work


def protect(privacy: Any, norms: Any = (), secret: int = 0, size: int = 1, clip: float = 1.0, kept: Any = None) -> Any:
    actual = result_of(torch.zeros(size), norms, kept)
    return privacy.privatize(
        *actual, {"clip": torch.tensor(clip, dtype=torch.float64), "times": torch.zeros(0)}, secret
    )


def assert_deviation(drawn: Any, std: float) -> None:
    """The numbers are normal around 0 with this deviation, as far as their sum and their squares tell."""
    drawn = np.asarray(drawn, float)
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], drawn.size)
    assert low < (drawn**2).sum() / std**2 < high
    assert abs(drawn.sum()) < norm.ppf(1 - FALSE_ALARM / 2) * std * math.sqrt(drawn.size)


def os_secret() -> int:
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]
