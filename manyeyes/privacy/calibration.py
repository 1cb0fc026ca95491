"""Noise, rounds, epsilon or delta from the other three; and a large cohort's noise on a small cohort."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from manyeyes.components.validation import require_int, require_positive
from manyeyes.privacy.accountant import PrivacyAccountant, check_delta

CLOSE = 1e-5  # how near to the least noise, relatively
MOST_ROUNDS = 10**9


@dataclass(frozen=True)
class PrivacyGuarantee:
    """An account, and what it promises."""

    account: PrivacyAccountant
    epsilon: float
    delta: float
    solved: str  # which was computed from the others: rounds, noise, epsilon or delta


def auto_delta(users: int) -> float:
    """N^-1.1: below one in the number of users, as FLAIR has it (section 5.1)."""
    require_int("users", users, 2)
    return float(users**-1.1)


def calibrate(
    users: int,
    cohort: int,
    rounds: int | None = None,
    noise: float | None = None,
    epsilon: float | None = None,
    delta: float | str | None = "auto",
    sampling: str = "poisson",
    accountant: str = "rdp",
    interval: float = 1e-3,
) -> PrivacyGuarantee:
    """The one of rounds, noise, epsilon and delta that is None, from the other three; `delta="auto"` is N^-1.1."""
    if isinstance(delta, str):
        if delta != "auto":
            raise ValueError(f"delta is {delta!r}: it must be a number or auto")
        delta = auto_delta(users)
    given = {"rounds": rounds, "noise": noise, "epsilon": epsilon, "delta": delta}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        found = f"{' and '.join(missing)} are missing" if missing else "all are given"
        raise ValueError(f"of rounds, noise, epsilon and delta one is computed from the other three, and {found}")
    if epsilon is not None:
        require_positive("epsilon", epsilon)
    if delta is not None:
        check_delta(delta)
    account = PrivacyAccountant(
        users,
        cohort,
        1 if rounds is None else rounds,
        1.0 if noise is None else noise,
        sampling,
        accountant,
        interval,
    )
    if epsilon is None:
        assert delta is not None
        if not (epsilon := account.epsilon(delta)):
            raise ValueError(
                f"noise {account.noise_multiplier:g} leaves epsilon 0 at delta {delta:.3g}: lower one of them"
            )
        return PrivacyGuarantee(account, epsilon, delta, "epsilon")
    if delta is None:
        return PrivacyGuarantee(account, epsilon, account.delta(epsilon), "delta")
    if noise is None:
        return PrivacyGuarantee(
            replace(account, noise_multiplier=min_noise_multiplier(account, epsilon, delta)), epsilon, delta, "noise"
        )
    return PrivacyGuarantee(replace(account, rounds=max_rounds(account, epsilon, delta)), epsilon, delta, "rounds")


def min_noise_multiplier(account: PrivacyAccountant, epsilon: float, delta: float) -> float:
    """The least noise with which the account, whatever noise it names, stays within (epsilon, delta)."""
    from scipy.optimize import brentq  # half a second to load, for private runs alone

    rdp = account.accountant == "rdp"
    if rdp:  # the central limit of the privacy loss, far from exact when there is little noise
        high = max(0.3, account.probability * math.sqrt(2 * account.rounds * math.log(1.25 / delta)) / epsilon)
    else:  # a privacy loss distribution of too little noise fills the memory: come from above
        high = min_noise_multiplier(replace(account, accountant="rdp"), epsilon, delta)
    step = 2.0 if rdp else 1.15

    def excess(log_noise: float) -> float:
        spent = replace(account, noise_multiplier=math.exp(log_noise)).epsilon(delta)
        return math.log(max(spent / epsilon, 1e-9))  # nearly a line; much noise spends 0

    while excess(math.log(high)) > 0:
        high *= step
    low = high / step
    while excess(math.log(low)) <= 0:
        low, high = low / step, low
    noise = math.exp(brentq(excess, math.log(low), math.log(high), xtol=CLOSE / 2))
    while excess(math.log(noise)) > 0:
        noise *= 1 + CLOSE / 2
    return noise


def max_rounds(account: PrivacyAccountant, epsilon: float, delta: float) -> int:
    """The most rounds in which the account, whatever number it names, stays within (epsilon, delta)."""

    def within(rounds: int) -> bool:
        return replace(account, rounds=rounds).epsilon(delta) <= epsilon

    if not within(1):
        spent = replace(account, rounds=1).epsilon(delta)
        raise ValueError(
            f"one round at noise {account.noise_multiplier:g} spends epsilon {spent:.3g} of {epsilon:g}: add noise"
        )
    high = 2
    while within(high):
        high *= 2
        if high > MOST_ROUNDS:
            raise ValueError(
                f"noise {account.noise_multiplier:g} keeps epsilon within {epsilon:g} for a billion rounds: lower it"
            )
    # bisect wants a list that rises: of the rounds from high / 2 on, those that are too many come last
    return high // 2 - 1 + bisect_left(range(high // 2, high), True, key=lambda rounds: not within(rounds))


@dataclass(frozen=True)
class Simulation:
    """A small cohort that trains with the noise of a large one (FLAIR, section 5.1; McMahan et al. 2018).

    The noise on the sum of the small cohort is scaled by its share of the large one, so that the mean carries the
    noise that the large cohort's mean would.
    """

    account: PrivacyAccountant  # of the large cohort, whose noise is simulated
    cohort: int  # the small one, which trains

    def __post_init__(self) -> None:
        require_int("cohort", self.cohort, 1)
        if self.cohort > self.account.cohort_size:
            raise ValueError(
                f"noise_cohort is {self.account.cohort_size}: it must be at least the cohort that trains, {self.cohort}"
            )

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise on the sum over the small cohort, in clips."""
        return self.account.noise_multiplier * self.cohort / self.account.cohort_size

    def mean_std(self, clip: float) -> float:
        """Standard deviation of the noise on each number of the mean update."""
        return self.account.noise_multiplier * clip / self.account.cohort_size

    def epsilon(self, delta: float) -> float:
        """Of the large cohort: what the same training with that many users a round would promise."""
        return self.account.epsilon(delta)

    def small_cohort_accountant(self) -> PrivacyAccountant:
        """The account of the small cohort, which is what a model that it trained has really spent."""
        return replace(self.account, cohort_size=self.cohort, noise_multiplier=self.noise_multiplier)

    def describe(self, delta: float) -> str:
        """For a report."""
        promised = f"({self.epsilon(delta):.4g}, {delta:.3g})-differential privacy ({self.account.adjacency})"
        if self.cohort == self.account.cohort_size:
            return f"{promised}, with {self.cohort:,} users a round"
        many, few = f"{self.account.cohort_size:,}", f"{self.cohort:,}"
        return (
            f"The noise is that of {many} users a round, simulated with {few}: {promised} is what training with {many} "
            f"would promise. This training itself, with {few}, spends epsilon {self.small_cohort_accountant().epsilon(delta):.3g}"
        )
