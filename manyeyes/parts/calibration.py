"""Noise, rounds, epsilon or delta from the other three; and a large cohort's noise on a small cohort."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from manyeyes.parts.accounting import Account, check_delta
from manyeyes.parts.require import count, positive

CLOSE = 1e-5  # how near to the least noise, relatively
MOST_ROUNDS = 10**9


@dataclass(frozen=True)
class Promise:
    """An account, and what it promises."""

    account: Account
    epsilon: float
    delta: float
    solved: str  # which was computed from the others: rounds, noise, epsilon or delta


def auto_delta(users: int) -> float:
    """N^-1.1: below one in the number of users, as FLAIR has it (section 5.1)."""
    count("users", users, 2)
    return float(users**-1.1)


def solve(
    users: int,
    cohort: int,
    rounds: int | None = None,
    noise: float | None = None,
    epsilon: float | None = None,
    delta: float | str | None = "auto",
    sampling: str = "poisson",
    accountant: str = "rdp",
    interval: float = 1e-3,
) -> Promise:
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
        positive("epsilon", epsilon)
    if delta is not None:
        check_delta(delta)
    account = Account(
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
            raise ValueError(f"noise {account.noise:g} leaves epsilon 0 at delta {delta:.3g}: lower one of them")
        return Promise(account, epsilon, delta, "epsilon")
    if delta is None:
        return Promise(account, epsilon, account.delta(epsilon), "delta")
    if noise is None:
        return Promise(replace(account, noise=least_noise(account, epsilon, delta)), epsilon, delta, "noise")
    return Promise(replace(account, rounds=most_rounds(account, epsilon, delta)), epsilon, delta, "rounds")


def least_noise(account: Account, epsilon: float, delta: float) -> float:
    """The least noise with which the account, whatever noise it names, stays within (epsilon, delta)."""
    from scipy.optimize import brentq  # half a second to load, for private runs alone

    rdp = account.accountant == "rdp"
    if rdp:  # the central limit of the privacy loss, far from exact when there is little noise
        high = max(0.3, account.probability * math.sqrt(2 * account.rounds * math.log(1.25 / delta)) / epsilon)
    else:  # a privacy loss distribution of too little noise fills the memory: come from above
        high = least_noise(replace(account, accountant="rdp"), epsilon, delta)
    step = 2.0 if rdp else 1.15

    def excess(log_noise: float) -> float:
        spent = replace(account, noise=math.exp(log_noise)).epsilon(delta)
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


def most_rounds(account: Account, epsilon: float, delta: float) -> int:
    """The most rounds in which the account, whatever number it names, stays within (epsilon, delta)."""

    def within(rounds: int) -> bool:
        return replace(account, rounds=rounds).epsilon(delta) <= epsilon

    if not within(1):
        spent = replace(account, rounds=1).epsilon(delta)
        raise ValueError(f"one round at noise {account.noise:g} spends epsilon {spent:.3g} of {epsilon:g}: add noise")
    high = 2
    while within(high):
        high *= 2
        if high > MOST_ROUNDS:
            raise ValueError(f"noise {account.noise:g} keeps epsilon within {epsilon:g} for a billion rounds: lower it")
    # bisect wants a list that rises: of the rounds from high / 2 on, those that are too many come last
    return high // 2 - 1 + bisect_left(range(high // 2, high), True, key=lambda rounds: not within(rounds))


@dataclass(frozen=True)
class Simulation:
    """A small cohort that trains with the noise of a large one (FLAIR, section 5.1; McMahan et al. 2018).

    The noise on the sum of the small cohort is scaled by its share of the large one, so that the mean carries the
    noise that the large cohort's mean would.
    """

    account: Account  # of the large cohort, whose noise is simulated
    cohort: int  # the small one, which trains

    def __post_init__(self) -> None:
        count("cohort", self.cohort, 1)
        if self.cohort > self.account.cohort:
            raise ValueError(
                f"noise_cohort is {self.account.cohort}: it must be at least the cohort that trains, {self.cohort}"
            )

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on the sum over the small cohort, in clips."""
        return self.account.noise * self.cohort / self.account.cohort

    def mean_std(self, clip: float) -> float:
        """Standard deviation of the noise on each number of the mean update."""
        return self.account.noise * clip / self.account.cohort

    def epsilon(self, delta: float) -> float:
        """Of the large cohort: what the same training with that many users a round would promise."""
        return self.account.epsilon(delta)

    def itself(self) -> Account:
        """The account of the small cohort, which is what a model that it trained has really spent."""
        return replace(self.account, cohort=self.cohort, noise=self.noise)

    def words(self, delta: float) -> str:
        """For a report."""
        promised = f"({self.epsilon(delta):.4g}, {delta:.3g})-differential privacy ({self.account.adjacency})"
        if self.cohort == self.account.cohort:
            return f"{promised}, with {self.cohort:,} users a round."
        many, few = f"{self.account.cohort:,}", f"{self.cohort:,}"
        return (
            f"The noise is that of {many} users a round, simulated with {few}: {promised} is what training with {many} "
            f"would promise. This training itself, with {few}, spends epsilon {self.itself().epsilon(delta):.3g}."
        )
