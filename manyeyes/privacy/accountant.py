"""What rounds of private training reveal of one user: (epsilon, delta)-differential privacy, at the level of users.

A round publishes a sum of updates, each clipped to length C, plus Gaussian noise of standard deviation z C.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.components.validation import require_int, require_positive

SAMPLING = ("poisson", "fixed", "none")
ACCOUNTANTS = ("rdp", "pld")
# Sampling without replacement costs a square of the order; fewer orders bound it within 1 %, six times as fast.
FIXED_ORDERS = (1.25, 1.5, 1.75, 2, 2.5, *range(3, 17), 20, 24, 32, 48, 64, 128, 512, 1024)
GRID = 5  # at least so many points of a discretised privacy loss in its own spread: within 0.5 %
MOST_LOSS = 300.0  # exp(loss) overflows in a privacy loss distribution; such an epsilon promises nothing anyway

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PrivacyAccountant:
    """What is accounted: so many noisy sums, each over users drawn anew; the draw must stay hidden.

    poisson: each user takes part with probability cohort / users; neighbours differ by one user more or less.
    fixed: exactly `cohort` users, uniformly, none twice; neighbours differ by one user replaced by another.
    none: every user takes part in every round; neighbours differ by one user more or less.
    """

    num_users: int
    cohort_size: int  # expected with poisson, exact with fixed, all with none
    rounds: int
    noise_multiplier: float  # z: standard deviation of the noise on the sum, in clips
    sampling: str = "poisson"
    accountant: str = "rdp"  # rdp: the moments accountant; pld: privacy loss distributions, tighter
    interval: float = 1e-3  # at most, between the privacy losses that pld tells apart; 1e-4 is precise

    def __post_init__(self) -> None:
        require_int("users", self.num_users, 1)
        require_int("cohort", self.cohort_size, 1)
        require_int("rounds", self.rounds, 1)
        require_positive("noise", self.noise_multiplier)
        require_positive("interval", self.interval)
        if self.cohort_size > self.num_users:
            raise ValueError(f"cohort is {self.cohort_size}: it can be at most the number of users, {self.num_users}")
        if self.sampling not in SAMPLING:
            raise ValueError(f"sampling {self.sampling!r} is unknown: choose {', '.join(SAMPLING)}")
        if self.accountant not in ACCOUNTANTS:
            raise ValueError(f"accountant {self.accountant!r} is unknown: choose {', '.join(ACCOUNTANTS)}")
        if self.sampling == "none" and self.cohort_size != self.num_users:
            raise ValueError(f"without sampling all {self.num_users} users take part, and cohort is {self.cohort_size}")
        if self.sampling == "fixed" and self.accountant == "pld":
            raise ValueError(
                "accountant pld knows no privacy losses of fixed-size cohorts: choose rdp, or sampling poisson"
            )

    @property
    def probability(self) -> float:
        """q, of a user to take part in a round."""
        return self.cohort_size / self.num_users

    @property
    def adjacency(self) -> str:
        return "replace one user" if self.sampling == "fixed" else "add or remove one user"

    def epsilon(self, delta: float) -> float:
        """The least epsilon that the accountant can promise."""
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon  # a second to load, for private runs alone

        check_delta(delta)
        orders, renyi = _one_round(self.num_users, self.cohort_size, self.noise_multiplier, self.sampling)
        epsilon = float(compute_epsilon(orders, self.rounds * renyi, delta)[0])
        if self.accountant == "pld" and epsilon < MOST_LOSS:
            epsilon = float(_losses(self).get_epsilon_for_delta(delta))
        return epsilon

    def delta(self, epsilon: float) -> float:
        """The least delta that the accountant can promise."""
        from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

        require_positive("epsilon", epsilon)
        if self.accountant == "pld":
            return float(_losses(self).get_delta_for_epsilon(epsilon))
        orders, renyi = _one_round(self.num_users, self.cohort_size, self.noise_multiplier, self.sampling)
        return float(compute_delta(orders, self.rounds * renyi, epsilon)[0])


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}: it must be above 0 and below 1")


@lru_cache(maxsize=1024)
def _one_round(users: int, cohort: int, noise: float, sampling: str) -> tuple[Floats, Floats]:
    """Orders, and the Renyi divergence of one round at each; divergences of rounds add up (Mironov 2017)."""
    from dp_accounting import (
        DpEvent,
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SampledWithoutReplacementDpEvent,
    )
    from dp_accounting.rdp import RdpAccountant
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    event: DpEvent = GaussianDpEvent(noise)
    relation, orders = NeighboringRelation.ADD_OR_REMOVE_ONE, DEFAULT_RDP_ORDERS
    if sampling == "poisson":
        event = PoissonSampledDpEvent(cohort / users, event)
    elif sampling == "fixed":
        # A clipped update that is replaced by another moves the sum by up to 2 C (Wang, Balle, Kasiviswanathan 2019).
        event = SampledWithoutReplacementDpEvent(users, cohort, GaussianDpEvent(noise / 2))
        relation, orders = NeighboringRelation.REPLACE_ONE, FIXED_ORDERS
    accountant = RdpAccountant(orders, relation)
    with _without_warnings():
        accountant.compose(event)
    renyi: Floats = np.maximum(accountant.rdp, 0)  # rounding can leave it a hair below
    if sampling == "fixed":  # never worse than if the draw were known (the divergence is quasi-convex)
        renyi = np.minimum(renyi, accountant.orders / (2 * (noise / 2) ** 2))
    return accountant.orders, renyi


def _losses(account: PrivacyAccountant) -> Any:
    """The distribution of the privacy loss of all rounds."""
    if account.sampling == "none":  # T sums with noise z are one with z / sqrt(T)
        return _one_loss(1.0, account.noise_multiplier / math.sqrt(account.rounds), account.interval)
    return _one_loss(account.probability, account.noise_multiplier, account.interval).self_compose(account.rounds)


@lru_cache(maxsize=32)
def _one_loss(q: float, noise: float, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    # The loss of one round varies by q^2 times the chi-square distance of two Gaussians.
    spread = q * math.sqrt(math.expm1(min(noise**-2, 99)))
    fine = min(interval, spread / GRID)
    return privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=q, value_discretization_interval=fine)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """With little noise, dp-accounting says of some orders that it leaves them out; the bound holds without them."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@dataclass(frozen=True)
class EpsilonCurve:
    """What has been spent after each round of a run: a fifth of a millisecond with rdp, tens of them with pld."""

    account: PrivacyAccountant
    delta: float

    def __post_init__(self) -> None:
        check_delta(self.delta)

    def epsilon_spent(self, rounds: int) -> float:
        """Epsilon after so many rounds, be they more or fewer than planned."""
        require_int("rounds", rounds, 0)
        return replace(self.account, rounds=rounds).epsilon(self.delta) if rounds else 0.0


def update_noise(noise: float, count_std: float) -> float:
    """z of the update when adaptive clipping also publishes how many were within the clip, with noise `count_std`.

    (z^-2 - (2 sigma_b)^-2)^(-1/2), Andrew et al. 2021, theorem 1: the two releases together cost what z alone does.
    """
    require_positive("noise", noise)
    if not 2 * count_std > noise:
        raise ValueError(
            f"the count's noise of {count_std:g} leaves nothing for the update at noise {noise:g}: it must be above "
            f"{noise / 2:g}"
        )
    return (noise**-2 - (2 * count_std) ** -2) ** -0.5
