"""A privacy audit: attack our own private training, and compute a lower bound on epsilon from the correct guesses.

Canaries are users who take part with probability 1/2. Each has an update in a direction of its own, with the largest
norm that the clip allows: the worst case of the accounting. All are in one training (Steinke, Nasr and Jagielski 2023),
and the attack guesses from the model which of them took part.
"""

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
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.registry import Bounds, check_value
from manyeyes.core.rng import make_rng
from manyeyes.core.round import run_round
from manyeyes.core.state import init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions, EngineSetup
from manyeyes.engines.select import choose_engine
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.accountant import DELTA_BOUNDS
from manyeyes.privacy.mechanisms import CentralDP

CLIPPING_NORM = 0.01  # the norm of a canary's update is 70 times as large
SAMPLED_FRACTION = 0.5  # of the users, in each round on average
CANARIES_PER_GUESS = 20  # the attack guesses only about the canaries with the highest and lowest scores
NUM_USER_INPUTS = 300  # inputs that only ordinary users have values in
MAX_EPSILON = 100.0  # an epsilon that protects nothing
BLACK_IS_ZERO = Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True)
class Audit:
    """The epsilon that is claimed, and what an attack has proved at 95 % confidence."""

    claimed_epsilon: float
    delta: float
    num_users: int
    num_canaries: int
    rounds: int
    num_guesses: int
    num_correct: int
    epsilon_lower_bound: float  # for any mechanism
    gaussian_epsilon_lower_bound: float  # for Gaussian noise

    @property
    def passed(self) -> bool:
        """Whether the attack proves no more than is claimed."""
        return max(self.epsilon_lower_bound, self.gaussian_epsilon_lower_bound) <= self.claimed_epsilon

    def describe(self) -> str:
        bound, gaussian_bound = self.epsilon_lower_bound, self.gaussian_epsilon_lower_bound
        verdict = "no violation found by this attack" if self.passed else "THE GUARANTEE IS VIOLATED"
        return (
            f"claimed: epsilon {self.claimed_epsilon:g} at delta {self.delta:g}, over {self.rounds} rounds of about "
            f"half of {self.num_users:,} users\n"
            f"attack:  {self.num_correct} of {self.num_guesses} guesses were right about which of "
            f"{self.num_canaries:,} canaries took part\n"
            f"proved:  epsilon is at least {bound:.2f} at 95 % confidence, for any mechanism\n"
            f"         epsilon is at least {gaussian_bound:.2f} at 95 % confidence, for Gaussian noise\n"
            f"verdict: {verdict}"
        )


def audit(
    epsilon: float = 2.0,
    delta: float = 1e-5,
    num_users: int = 200,
    num_canaries: int = 4000,
    rounds: int = 8,
    seed: int = 0,
    engine: str = "reference",
    reproducible_noise: bool = False,
) -> Audit:
    """Train privately with canaries among the users, and guess from the model which of them took part."""
    check_value("num_users", num_users, int, Bounds(minimum=1))
    check_value("num_canaries", num_canaries, int, Bounds(minimum=2 * CANARIES_PER_GUESS))
    check_value("rounds", rounds, int, Bounds(minimum=1))
    is_present = make_rng(seed, "audit").random(num_canaries) < 0.5
    population = _population(num_users, is_present, seed)
    cohort_size = round(SAMPLED_FRACTION * len(population.user_ids))
    algorithm = Algorithm(PoissonSampler(cohort_size), EpochBatching(1, 2), SGD(1.0), WeightUniformly(), ServerSGD(1.0))
    privacy = CentralDP(epsilon, delta=delta, clipping_norm=CLIPPING_NORM, reproducible_noise=reproducible_noise)
    algorithm = replace(algorithm, privacy=privacy.calibrate(algorithm, population, rounds))
    weights = _train(algorithm, population, rounds, seed, engine)
    yes, no = weights.double().view(2, -1)[:, :num_canaries].numpy()
    # How far the model moved in each canary's direction, over the largest move of one round: clipping norm / cohort.
    scores = (yes - no) / math.sqrt(2) * cohort_size / CLIPPING_NORM

    num_guesses = num_canaries // CANARIES_PER_GUESS // 2 * 2
    order = np.argsort(scores)
    num_correct = int(is_present[order[-num_guesses // 2 :]].sum() + (~is_present[order[: num_guesses // 2]]).sum())
    threshold = rounds * SAMPLED_FRACTION / 2  # halfway between the expected scores of absent and present canaries
    absent, present = scores[~is_present], scores[is_present]
    false_alarms, misses = int((absent > threshold).sum()), int((present <= threshold).sum())
    bound = epsilon_lower_bound(num_canaries, num_guesses, num_correct, delta)
    gaussian_bound = gaussian_epsilon_lower_bound(false_alarms, len(absent), misses, len(present), delta)
    num_users = len(population.user_ids)
    return Audit(epsilon, delta, num_users, num_canaries, rounds, num_guesses, num_correct, bound, gaussian_bound)


def _population(num_users: int, is_present: NDArray[np.bool_], seed: int) -> Population:
    """Return canaries, each with one image that has a value in one input, and users with images of other inputs."""
    num_canaries, rng = len(is_present), make_rng(seed, "audited users")
    side = math.ceil(math.sqrt((num_canaries + NUM_USER_INPUTS) / 3))
    present = np.flatnonzero(is_present)
    pixels = np.zeros((len(present) + num_users, 3 * side * side), np.uint8)
    pixels[np.arange(len(present)), present] = 255
    pixels[len(present) :, num_canaries:] = rng.integers(0, 256, (num_users, pixels.shape[1] - num_canaries))
    images = np.ascontiguousarray(pixels.reshape(-1, 3, side, side).transpose(0, 2, 3, 1))
    labels = np.concatenate([np.zeros(len(present), np.int64), rng.integers(0, 2, num_users)])
    return Population.from_arrays(images, SingleLabels(labels, ("yes", "no")), np.arange(len(images)))


def _train(algorithm: Algorithm, population: Population, rounds: int, seed: int, engine_name: str) -> torch.Tensor:
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(population.image_shape), 2, bias=False)))
    options = EngineOptions(engine=engine_name, compile=False)
    setup = EngineSetup(flat, population, BLACK_IS_ZERO, torch.device("cpu"), options)
    state = init_state(algorithm, torch.zeros(flat.num_shared), flat.num_trainable)
    with choose_engine(algorithm, setup) as engine:
        for _ in range(rounds):
            state, _ = run_round(algorithm, state, population, engine, {}, seed)
    return state.weights


def p_value(num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float) -> float:
    """Return how likely that many correct guesses are at most, if each canary took part by a coin.

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i with B binomial, of r trials at e^eps / (1 + e^eps): Steinke, Nasr
    and Jagielski 2023, "Privacy auditing with one (1) training run", theorem 5.2.
    """
    if not 0 <= num_correct <= num_guesses <= num_canaries:
        counts = f"{num_correct} correct of {num_guesses} guesses about {num_canaries} canaries"
        raise ValueError(f"{counts} is impossible: correct the counts")
    probability, steps = 1 / (1 + math.exp(-epsilon)), np.arange(1, num_correct + 1)
    below = np.cumsum(binom.pmf(num_correct - steps, num_guesses, probability)) / steps
    tail = binom.sf(num_correct - 1, num_guesses, probability)
    return float(min(1, tail + 2 * num_canaries * delta * below.max(initial=0)))


def epsilon_lower_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """Return the epsilon that training has at least, whatever its mechanism is, from the numbers of an attack."""
    check_value("delta", delta, float, Bounds(minimum=0, below=1))
    return _root(lambda epsilon: p_value(canaries, guesses, correct, epsilon, delta) - (1 - confidence))


def gaussian_epsilon_lower_bound(
    false_alarms: int, num_absent: int, misses: int, num_present: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the epsilon that training with Gaussian noise has at least, a much tighter bound.

    Two Gaussians at a distance mu are distinguished with the errors Phi(t - mu) and Phi(-t); each error is at most its
    Clopper-Pearson bound, and epsilon follows from mu and delta (Nasr et al. 2023, "Tight auditing of differentially
    private machine learning", section 4).
    """
    check_value("delta", delta, float, DELTA_BOUNDS)
    quantile = 1 - (1 - confidence) / 2
    cases = ((false_alarms, num_absent), (misses, num_present))
    errors = [beta.ppf(quantile, count + 1, total - count) if count < total else 1.0 for count, total in cases]
    if sum(errors) >= 1:
        return 0.0
    mu = -sum(norm.ppf(errors))
    return _root(lambda epsilon: delta - gaussian_delta(mu, epsilon))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta of a release that moves by mu standard deviations, exactly (Balle and Wang 2018, theorem 8)."""
    if not mu:
        return 0.0
    return float(norm.cdf(mu / 2 - epsilon / mu)) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


def _root(excess: Callable[[float], float]) -> float:
    """Return the epsilon from which a rising function is at least 0."""
    if excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, MAX_EPSILON, xtol=1e-6)) if excess(MAX_EPSILON) > 0 else MAX_EPSILON
