"""An attack on our own private training: canaries take part by a coin, and are looked for in the model.

Each canary is a user whose update points in a direction of its own, as long as the clip allows: the worst case that is
accounted for. All are planted in one training (Steinke, Nasr and Jagielski 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from manyeyes.components import SGD, EpochBatching, PoissonSampler, ServerSGD, WeightUniformly
from manyeyes.components.validation import require_int
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.core.round import run_round
from manyeyes.core.state import init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions, EngineSetup
from manyeyes.engines.select import choose_engine
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.audit_bounds import epsilon_lower_bound, gaussian_epsilon_lower_bound
from manyeyes.privacy.mechanisms import CentralDP

CLIP = 0.01  # a canary's update is 70 times as long
SHARE = 0.5  # of the users that take part in a round, on average
GUESSES = 20  # canaries for each guess: only those that the model says most about
LIT = 300  # inputs that ordinary users light, and no canary
BLACK_IS_ZERO = Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True)
class Audit:
    """What was promised, and what an attack has proved at 95 % confidence."""

    claimed_epsilon: float
    delta: float
    users: int
    num_canaries: int
    rounds: int
    num_guesses: int
    num_correct: int
    epsilon_lower_bound: float  # whatever the mechanism is
    gaussian_epsilon_lower_bound: float  # as its noise is Gaussian

    @property
    def passed(self) -> bool:
        return max(self.epsilon_lower_bound, self.gaussian_epsilon_lower_bound) <= self.claimed_epsilon

    def describe(self) -> str:
        verdict = "the promise holds as far as this attack can tell" if self.passed else "THE PROMISE IS BROKEN"
        return (
            f"promised: epsilon {self.claimed_epsilon:g} at delta {self.delta:g}, over {self.rounds} rounds of about half of "
            f"{self.users:,} users\n"
            f"attacked: {self.num_correct} of {self.num_guesses} guesses who of {self.num_canaries:,} canaries was there were right\n"
            f"proved:   epsilon is at least {self.epsilon_lower_bound:.2f} at 95 % confidence, whatever the mechanism\n"
            f"          epsilon is at least {self.gaussian_epsilon_lower_bound:.2f} at 95 % confidence, as the noise is Gaussian\n"
            f"verdict:  {verdict}"
        )


def audit(
    epsilon: float = 2.0,
    delta: float = 1e-5,
    users: int = 200,
    canaries: int = 4000,
    rounds: int = 8,
    seed: int = 0,
    engine: str = "reference",
    reproducible_noise: bool = False,
) -> Audit:
    """Train privately with canaries among the users, and guess from the model which of them were there."""
    for name, value, least in (("users", users, 1), ("canaries", canaries, 2 * GUESSES), ("rounds", rounds, 1)):
        require_int(name, value, least)
    present = make_rng(seed, "audit").random(canaries) < 0.5
    population = _population(users, present, seed)
    everyone = len(population.user_ids)
    algorithm = Algorithm(
        PoissonSampler(round(SHARE * everyone)), EpochBatching(1, 2), SGD(1.0), WeightUniformly(), ServerSGD(1.0)
    )
    privacy = CentralDP(epsilon, delta=delta, clipping_norm=CLIP, reproducible_noise=reproducible_noise)
    algorithm = replace(algorithm, privacy=privacy.calibrate(algorithm, population, rounds))
    scores = _scores(algorithm, population, canaries, rounds, seed, engine)

    guesses = canaries // GUESSES // 2 * 2
    order = np.argsort(scores)
    right = int(present[order[-guesses // 2 :]].sum() + (~present[order[: guesses // 2]]).sum())
    middle = rounds * SHARE / 2  # between where those that took part and those that did not are expected
    false_alarms, misses = int((scores[~present] > middle).sum()), int((scores[present] <= middle).sum())
    return Audit(
        claimed_epsilon=epsilon,
        delta=delta,
        users=everyone,
        num_canaries=canaries,
        rounds=rounds,
        num_guesses=guesses,
        num_correct=right,
        epsilon_lower_bound=epsilon_lower_bound(canaries, guesses, right, delta),
        gaussian_epsilon_lower_bound=gaussian_epsilon_lower_bound(
            false_alarms, int((~present).sum()), misses, int(present.sum()), delta
        ),
    )


def _population(users: int, present: NDArray[np.bool_], seed: int) -> Population:
    """Canaries, each with one photo that lights one input of its own, and users with photos of other inputs."""
    canaries, rng = len(present), make_rng(seed, "audited users")
    side = math.ceil(math.sqrt((canaries + LIT) / 3))
    own = np.flatnonzero(present)
    photos = np.zeros((len(own) + users, 3 * side * side), np.uint8)
    photos[np.arange(len(own)), own] = 255
    photos[len(own) :, canaries:] = rng.integers(0, 256, (users, photos.shape[1] - canaries))
    images = photos.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)
    labels = np.concatenate([np.zeros(len(own), np.int64), rng.integers(0, 2, users)])
    return Population.from_arrays(
        np.ascontiguousarray(images), SingleLabels(labels, ("yes", "no")), np.arange(len(images))
    )


def _scores(
    algorithm: Algorithm, population: Population, canaries: int, rounds: int, seed: int, name: str
) -> NDArray[np.float64]:
    """How far the model moved in each canary's direction, in what one round can move it: clip / cohort."""
    inputs = int(np.prod(population.image_shape))
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(inputs, 2, bias=False)))
    options = EngineOptions(engine=name, compile=False)
    setup = EngineSetup(flat, population, BLACK_IS_ZERO, torch.device("cpu"), options)
    state = init_state(algorithm, torch.zeros(flat.num_shared), flat.num_trainable)
    with choose_engine(algorithm, setup) as engine:
        for _ in range(rounds):
            state, _ = run_round(algorithm, state, population, engine, {}, seed)
    assert isinstance(algorithm.sampler, PoissonSampler)
    yes, no = state.weights.double().view(2, inputs)[:, :canaries].numpy()
    return (yes - no) / math.sqrt(2) * algorithm.sampler.cohort_size / CLIP
