"""An attack on our own private training: canaries take part by a coin, and are looked for in the model.

Each canary is a user whose update points in a direction of its own, as long as the clip allows: the worst case that is
accounted for. All are planted in one training (Steinke, Nasr and Jagielski 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm
from torch import nn

from manyeyes.components import SGD, EpochBatching, PoissonSampler, ServerSGD, WeightUniformly
from manyeyes.components.validation import require_at_least, require_int
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.core.round import run_round
from manyeyes.core.state import init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions, EngineSetup
from manyeyes.engines.select import choose_engine
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.accountant import check_delta
from manyeyes.privacy.mechanisms import CentralDP

MOST = 100.0  # an epsilon that promises nothing


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """At most how likely so many right guesses are, if each canary took part by a coin and training is private.

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i with B binomial, of r trials at e^eps / (1 + e^eps): Steinke, Nasr
    and Jagielski 2023, "Privacy auditing with one (1) training run", theorem 5.2.
    """
    require_int("canaries", canaries, 1)
    if not 0 <= right <= guesses <= canaries:
        raise ValueError(f"{right} of {guesses} guesses about {canaries} canaries cannot be right")
    chance, steps = 1 / (1 + math.exp(-epsilon)), np.arange(1, right + 1)
    below = np.cumsum(binom.pmf(right - steps, guesses, chance)) / steps
    return float(min(1, binom.sf(right - 1, guesses, chance) + 2 * canaries * delta * below.max(initial=0)))


def epsilon_lower_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """Training has at least this epsilon, whatever it does, with so much confidence."""
    if delta:
        check_delta(delta)
    return _root(lambda epsilon: p_value(canaries, guesses, right, epsilon, delta) - (1 - confidence))


def gaussian_epsilon_lower_bound(
    false_alarms: int, absent: int, misses: int, present: int, delta: float, confidence: float = 0.95
) -> float:
    """The same of training whose trade-off between the two errors is that of Gaussian noise: tighter by far.

    Two Gaussians mu apart are told with the errors Phi(t - mu) and Phi(-t); each error is at most its Clopper-Pearson
    bound, and epsilon follows from mu and delta (Nasr et al. 2023, "Tight auditing of differentially private machine
    learning", section 4).
    """
    check_delta(delta)
    wrong = (1 - confidence) / 2
    errors = [
        float(beta.ppf(1 - wrong, found + 1, of - found)) if found < of else 1.0
        for found, of in ((false_alarms, absent), (misses, present))
    ]
    if sum(errors) >= 1:
        return 0.0
    mu = -sum(norm.ppf(errors))
    return _root(lambda epsilon: delta - gaussian_delta(mu, epsilon))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Of a release that moves by mu standard deviations, exactly (Balle and Wang 2018, theorem 8)."""
    require_at_least("mu", mu, 0)
    inside = math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) if mu else 0.0
    return float(norm.cdf(mu / 2 - epsilon / mu)) - inside if mu else 0.0


def _root(excess: Callable[[float], float]) -> float:
    """The epsilon from which on a rising function is no longer below 0."""
    if excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, MOST, xtol=1e-6)) if excess(MOST) > 0 else MOST


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
