"""A population in which each user's contribution to a sum is visible, and statistical tests of the noise on a sum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
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
from manyeyes.core.state import CohortResult, RoundContext, ServerState, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions, EngineSetup
from manyeyes.engines.select import choose_engine
from manyeyes.models.flat import FlatModel
from tests.engines.multiprocess_runs import NEEDS_WORKERS

FALSE_ALARM_RATE = 1e-6
SIDE = 10  # pixels; each user has one of them, so a sum of updates shows what each user has added
NUM_USERS = SIDE * SIDE
BLACK_IS_ZERO = Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))  # inputs of 0 have no gradient
ENGINES = ["reference", "vmap", "cuda_graphs", pytest.param("multiprocess", marks=NEEDS_WORKERS)]
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(3 * NUM_USERS, 2, bias=False))
NUM_WEIGHTS = 6 * NUM_USERS
FEDAVG = Algorithm(PoissonSampler(20), EpochBatching(1, 2), SGD(0.1), WeightUniformly(), ServerSGD(1.0))


def make_population() -> Population:
    """Return users with one to three images, each with light only in its user's pixel."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(NUM_USERS), rng.integers(1, 4, NUM_USERS))
    images = np.zeros((len(owners), NUM_USERS, 3), np.uint8)
    images[np.arange(len(owners)), owners] = rng.integers(1, 256, (len(owners), 3))
    labels = SingleLabels(rng.integers(0, 2, len(owners)), ("day", "night"))
    return Population.from_arrays(images.reshape(-1, SIDE, SIDE, 3), labels, owners)


POPULATION = make_population()


def user_norms(update_W: Tensor) -> Tensor:
    """Return the norm of what each user has added to a sum [users]."""
    return torch.linalg.vector_norm(update_W.view(2, 3, NUM_USERS), dim=(0, 1))


def first_state(algorithm: Algorithm, value: float = 0.0) -> ServerState:
    """Return the server state before round 1 with all weights equal."""
    return init_state(algorithm, torch.full((NUM_WEIGHTS,), value), NUM_WEIGHTS)


@contextmanager
def open_engine(name: str) -> Iterator[Engine]:
    options = EngineOptions(engine=name, compile=False, workers=2)
    setup = EngineSetup(FlatModel(LINEAR), POPULATION, BLACK_IS_ZERO, torch.device("cpu"), options)
    with choose_engine(FEDAVG, setup) as engine:
        yield engine


def private_algorithm(privacy: Any, rounds: int = 10, **components: Any) -> Algorithm:
    """Return FedAvg with other components and a mechanism that is calibrated for them."""
    algorithm = replace(FEDAVG, **components)
    return replace(algorithm, privacy=privacy.calibrate(algorithm, POPULATION, rounds))


def make_result(
    update_W: Tensor, norms: Any = (), accepted: Any = None
) -> tuple[CohortResult, RoundPlan, RoundContext]:
    """Return what an engine might return for clients whose updates have these norms."""
    norm_K = np.asarray(norms, float)
    accepted_K = np.ones(len(norm_K), bool) if accepted is None else np.asarray(accepted)
    indices, seeds = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    client = ClientPlan(0, 0, 1, 1.0, indices, np.ones((1, 1), np.float32), None, seeds, None, None)
    clients = tuple(replace(client, user=k, client_id=k) for k in range(len(norm_K)))
    context = RoundContext(FEDAVG.client_optimizer, 0.1, None, None, None)
    result = CohortResult(update_W, None, accepted_K, np.zeros(len(norm_K)), norm_K, {})
    return result, RoundPlan(0, 0, clients), context


def privatize(
    privacy: Any, norms: Any = (), noise_seed: int = 0, size: int = 1, clip: float = 1.0, accepted: Any = None
) -> Any:
    """Return the noised mean of updates that are 0, and the new privacy state."""
    state = {"clip": torch.tensor(clip, dtype=torch.float64), "times": torch.zeros(0, dtype=torch.int64)}
    return privacy.privatize(*make_result(torch.zeros(size), norms, accepted), state, noise_seed)


def assert_stddev(samples: Any, stddev: float) -> None:
    """Check that samples are normal around 0 with this standard deviation, by their sum and their squares."""
    samples = np.asarray(samples, float)
    low, high = chi2.ppf([FALSE_ALARM_RATE / 2, 1 - FALSE_ALARM_RATE / 2], samples.size)
    assert low < (samples**2).sum() / stddev**2 < high
    assert abs(samples.sum()) < norm.ppf(1 - FALSE_ALARM_RATE / 2) * stddev * math.sqrt(samples.size)


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """Return delta of a Gaussian release with sensitivity 1, exactly (Balle and Wang 2018, theorem 8)."""
    a, b = 0.5 / sigma, epsilon * sigma
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))


def os_seed() -> int:
    """Return a seed from the operating system."""
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]
