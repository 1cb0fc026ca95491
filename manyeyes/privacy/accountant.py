"""What rounds of private training reveal of one user: (epsilon, delta)-differential privacy, at the level of users.

A round publishes a sum of updates, each clipped to norm C, plus Gaussian noise of standard deviation z C.
"""

import logging
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.registry import Bounds, check_options, check_value, option

SAMPLINGS = ("poisson", "fixed", "none")
METHODS = ("rdp", "pld")
DELTA_BOUNDS = Bounds(above=0, below=1)
# Sampling without replacement costs the square of the order; these orders bound epsilon within 1 %, six times as fast.
FIXED_SIZE_ORDERS = (1.25, 1.5, 1.75, 2, 2.5, *range(3, 17), 20, 24, 32, 48, 64, 128, 512, 1024)
MIN_POINTS_PER_STDDEV = 5  # of a discretized privacy loss: within 0.5 %
MAX_PLD_EPSILON = 300.0  # exp(loss) overflows in a privacy loss distribution; such an epsilon protects nothing anyway
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class PrivacyAccountant:
    """Accounts for rounds of a noisy sum over newly sampled users; who was sampled must stay secret.

    poisson: each user takes part with probability cohort_size / num_users; neighbors differ in one added user.
    fixed: exactly `cohort_size` different users, uniformly; neighbors differ in one replaced user.
    none: every user takes part in every round; neighbors differ in one added user.
    """

    num_users: int = option(minimum=1)
    cohort_size: int = option(minimum=1)  # expected with poisson, exact with fixed, all users with none
    rounds: int = option(minimum=1)
    noise_multiplier: float = option(above=0)  # z: standard deviation of the noise on the sum over the clipping norm
    sampling: str = option("poisson", choices=SAMPLINGS)
    method: str = option("rdp", choices=METHODS)  # moments, or privacy loss distributions, which are tighter
    interval: float = option(1e-3, above=0)  # of discretized privacy losses, at most; 1e-4 is precise

    def __post_init__(self) -> None:
        check_options(self, "")
        cohort_size, num_users = self.cohort_size, self.num_users
        check_value("cohort_size", cohort_size, int, Bounds(maximum=num_users))
        if self.sampling == "none" and cohort_size != num_users:
            raise ValueError(f"sampling=none uses all users: cohort_size is {cohort_size}, set it to {num_users}")
        if self.sampling == "fixed" and self.method == "pld":
            raise ValueError("accountant=pld has no privacy losses of fixed-size cohorts: use rdp, or Poisson sampling")

    @property
    def probability(self) -> float:
        """q, the probability that a user takes part in a round."""
        return self.cohort_size / self.num_users

    @property
    def adjacency(self) -> str:
        """The difference between two datasets that must look alike."""
        return "replace one user" if self.sampling == "fixed" else "add or remove one user"

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon that the accountant can guarantee at delta."""
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon  # takes a second, only for private runs

        check_value("delta", delta, float, DELTA_BOUNDS)
        orders, renyi = _divergences(self.num_users, self.cohort_size, self.noise_multiplier, self.sampling)
        epsilon = compute_epsilon(orders, self.rounds * renyi, delta)[0]
        if self.method == "pld" and epsilon < MAX_PLD_EPSILON:
            epsilon = _privacy_loss(self).get_epsilon_for_delta(delta)
        return float(epsilon)

    def epsilon_spent(self, rounds: int, delta: float) -> float:
        """Return epsilon after this many rounds, 0 or more: in 0.2 ms with rdp, in tens of milliseconds with pld."""
        check_value("rounds", rounds, int, Bounds(minimum=0))
        return replace(self, rounds=rounds).epsilon(delta) if rounds else 0.0

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta that the accountant can guarantee at epsilon."""
        from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

        check_value("epsilon", epsilon, float, Bounds(above=0))
        if self.method == "pld":
            return float(_privacy_loss(self).get_delta_for_epsilon(epsilon))
        orders, renyi = _divergences(self.num_users, self.cohort_size, self.noise_multiplier, self.sampling)
        return float(compute_delta(orders, self.rounds * renyi, epsilon)[0])


@lru_cache(maxsize=1024)
def _divergences(num_users: int, cohort_size: int, noise_multiplier: float, sampling: str) -> tuple[Doubles, Doubles]:
    """Return orders and the Renyi divergence of one round at each; those of rounds add up (Mironov 2017)."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    event: dp.DpEvent = dp.GaussianDpEvent(noise_multiplier)
    accountant = RdpAccountant()
    if sampling == "poisson":
        event = dp.PoissonSampledDpEvent(cohort_size / num_users, event)
    elif sampling == "fixed":
        # A clipped update that is replaced by another moves the sum by up to 2 C (Wang, Balle, Kasiviswanathan 2019).
        event = dp.SampledWithoutReplacementDpEvent(num_users, cohort_size, dp.GaussianDpEvent(noise_multiplier / 2))
        accountant = RdpAccountant(FIXED_SIZE_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    logger = logging.getLogger("absl")  # warns that some orders are left out with little noise: the bound holds
    was_disabled, logger.disabled = logger.disabled, True
    try:
        accountant.compose(event)
    finally:
        logger.disabled = was_disabled
    renyi: Doubles = np.maximum(accountant.rdp, 0)  # rounding can make it slightly negative
    if sampling == "fixed":  # never worse than if the sample were known (the divergence is quasi-convex)
        renyi = np.minimum(renyi, accountant.orders / (2 * (noise_multiplier / 2) ** 2))
    return accountant.orders, renyi


def _privacy_loss(accountant: PrivacyAccountant) -> Any:
    noise_multiplier, rounds = accountant.noise_multiplier, accountant.rounds
    if accountant.sampling == "none":  # T sums with noise z are one with z / sqrt(T)
        return _one_loss(1.0, noise_multiplier / math.sqrt(rounds), accountant.interval)
    return _one_loss(accountant.probability, noise_multiplier, accountant.interval).self_compose(rounds)


@lru_cache(maxsize=32)
def _one_loss(q: float, noise_multiplier: float, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    # The loss of one round varies by q^2 times the chi-square distance of two Gaussians.
    stddev = q * math.sqrt(math.expm1(min(noise_multiplier**-2, 99)))
    interval = min(interval, stddev / MIN_POINTS_PER_STDDEV)
    options = {"value_discretization_interval": interval, "sampling_prob": q}
    return privacy_loss_distribution.from_gaussian_mechanism(noise_multiplier, **options)


def update_noise(noise_multiplier: float, clipped_count_stddev: float) -> float:
    """Return the noise multiplier of the update when the number of unclipped updates is published too.

    z_update = (z^-2 - (2 sigma_b)^-2)^(-1/2), where sigma_b is the noise on the number: the two releases together cost
    what z alone does (Andrew et al. 2021, theorem 1).
    """
    check_value("noise_multiplier", noise_multiplier, float, Bounds(above=0))
    if not 2 * clipped_count_stddev > noise_multiplier:
        setting = f"privacy.clipped_count_stddev={clipped_count_stddev:g}"
        problem = f"leaves nothing for the update at noise multiplier {noise_multiplier:g}"
        raise ValueError(f"{setting} {problem}: set it to a number above {noise_multiplier / 2:g}")
    return (noise_multiplier**-2 - (2 * clipped_count_stddev) ** -2) ** -0.5
