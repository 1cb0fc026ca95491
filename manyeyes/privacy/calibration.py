"""The noise multiplier, rounds, epsilon or delta from the other three; and a large cohort's noise on a small cohort."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any

from manyeyes.core.registry import Bounds, check_value
from manyeyes.privacy.accountant import DELTA_BOUNDS, METHODS, PrivacyAccountant

NOISE_RTOL = 1e-5  # of the smallest noise multiplier
MAX_ROUNDS = 10**9


@dataclass(frozen=True)
class PrivacyGuarantee:
    """An epsilon and delta, and the rounds that keep within them."""

    accountant: PrivacyAccountant
    epsilon: float
    delta: float
    solved: str  # which was computed from the others: rounds, noise_multiplier, epsilon or delta


def auto_delta(num_users: int) -> float:
    """Return N^-1.1, less than one over the number of users, as in FLAIR (section 5.1)."""
    check_value("num_users", num_users, int, Bounds(minimum=2))
    return float(num_users**-1.1)


def calibrate(
    num_users: int,
    cohort_size: int,
    rounds: int | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float | str | None = "auto",
    sampling: str = "poisson",
    accountant: str = "rdp",
    interval: float = 1e-3,
) -> PrivacyGuarantee:
    """Compute the one of rounds, noise_multiplier, epsilon and delta that is None; `delta="auto"` is N^-1.1."""
    if delta == "auto":
        delta = auto_delta(num_users)
    values = {"rounds": rounds, "noise_multiplier": noise_multiplier, "epsilon": epsilon, "delta": delta}
    known: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    missing = [name for name in values if name not in known]
    if len(missing) != 1:
        problem = f"{' and '.join(missing)} are missing" if missing else "all four are set"
        raise ValueError(f"rounds, noise_multiplier, epsilon and delta: set three, and one is computed; {problem}")
    check_value("epsilon", epsilon, float | None, Bounds(above=0))
    check_value("delta", delta, float | None, DELTA_BOUNDS)
    check_value("accountant", accountant, str, Bounds(choices=METHODS))
    complete = {"rounds": 1, "noise_multiplier": 1.0} | known
    sizes = (num_users, cohort_size, complete["rounds"], complete["noise_multiplier"])
    return _solve(missing[0], PrivacyAccountant(*sizes, sampling, accountant, interval), known)


def _solve(name: str, accountant: PrivacyAccountant, known: dict[str, Any]) -> PrivacyGuarantee:
    """Return the guarantee with the value of `name`, for which the accountant has a placeholder."""
    epsilon, delta = known.get("epsilon", 0.0), known.get("delta", 0.0)
    if name == "delta":
        delta = accountant.delta(epsilon)
    elif name == "rounds":
        accountant = replace(accountant, rounds=max_rounds(accountant, epsilon, delta))
    elif name == "noise_multiplier":
        accountant = replace(accountant, noise_multiplier=min_noise_multiplier(accountant, epsilon, delta))
    elif not (epsilon := accountant.epsilon(delta)):
        noise = accountant.noise_multiplier
        raise ValueError(f"a noise multiplier of {noise:g} gives epsilon 0 at delta {delta:.3g}: set one of them lower")
    return PrivacyGuarantee(accountant, epsilon, delta, name)


def min_noise_multiplier(accountant: PrivacyAccountant, epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier that stays within (epsilon, delta); the accountant's own is ignored."""
    from scipy.optimize import brentq  # half a second to load, only for private runs

    factor = 2.0 if accountant.method == "rdp" else 1.15
    if accountant.method == "rdp":  # the central limit of the privacy loss, far from exact with little noise
        high = max(0.3, accountant.probability * math.sqrt(2 * accountant.rounds * math.log(1.25 / delta)) / epsilon)
    else:  # a privacy loss distribution with too little noise fills the memory: search from above
        high = min_noise_multiplier(replace(accountant, method="rdp"), epsilon, delta)

    def excess(log_noise: float) -> float:
        """Return log(epsilon spent / epsilon), nearly a line; with much noise 0 is spent."""
        spent = replace(accountant, noise_multiplier=math.exp(log_noise)).epsilon(delta)
        return math.log(max(spent / epsilon, 1e-9))

    while excess(math.log(high)) > 0:
        high *= factor
    low = high / factor
    while excess(math.log(low)) <= 0:
        low, high = low / factor, low
    noise_multiplier = math.exp(brentq(excess, math.log(low), math.log(high), xtol=NOISE_RTOL / 2))
    while excess(math.log(noise_multiplier)) > 0:
        noise_multiplier *= 1 + NOISE_RTOL / 2
    return noise_multiplier


def max_rounds(accountant: PrivacyAccountant, epsilon: float, delta: float) -> int:
    """Return the most rounds that stay within (epsilon, delta); the accountant's own number is ignored."""

    def spent(rounds: int) -> float:
        return replace(accountant, rounds=rounds).epsilon(delta)

    noise = f"a noise multiplier of {accountant.noise_multiplier:g}"
    if spent(1) > epsilon:
        raise ValueError(f"one round with {noise} spends epsilon {spent(1):.3g} of {epsilon:g}: set more noise")
    high = 2
    while spent(high) <= epsilon:
        high *= 2
        if high > MAX_ROUNDS:
            raise ValueError(f"{noise} keeps epsilon within {epsilon:g} for a billion rounds: set less noise")
    # bisect needs a sorted list: among the rounds from high / 2 on, those that are too many come last
    return high // 2 - 1 + bisect_left(range(high // 2, high), True, key=lambda rounds: spent(rounds) > epsilon)


@dataclass(frozen=True)
class Simulation:
    """A small cohort that trains with the noise of a large one (FLAIR, section 5.1; McMahan et al. 2018).

    The noise on the sum over the small cohort is scaled by the ratio of the two sizes, so that its mean carries the
    noise that the mean of the large cohort would.
    """

    accountant: PrivacyAccountant  # of the large cohort, whose noise is simulated
    cohort_size: int  # of the small cohort, which trains

    def __post_init__(self) -> None:
        check_value("cohort_size", self.cohort_size, int, Bounds(minimum=1))
        check_value("noise_cohort_size", self.accountant.cohort_size, int, Bounds(minimum=self.cohort_size))

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise on the sum over the small cohort, over the clipping norm."""
        return self.accountant.noise_multiplier * self.cohort_size / self.accountant.cohort_size

    def small_cohort_accountant(self) -> PrivacyAccountant:
        """Return the accountant of the small cohort, for what this training really spends."""
        return replace(self.accountant, cohort_size=self.cohort_size, noise_multiplier=self.noise_multiplier)

    def describe(self, delta: float) -> str:
        """Return the guarantee in words, for a report."""
        epsilon, adjacency = self.accountant.epsilon(delta), self.accountant.adjacency
        guarantee = f"({epsilon:.4g}, {delta:.3g})-differential privacy ({adjacency})"
        large, small = f"{self.accountant.cohort_size:,}", f"{self.cohort_size:,}"
        if self.cohort_size == self.accountant.cohort_size:
            return f"{guarantee}, with {small} users per round."
        spent = self.small_cohort_accountant().epsilon(delta)
        return (
            f"The noise is that of {large} users per round, simulated with {small}: training with {large} would have "
            f"{guarantee}. This training, with {small}, spends epsilon {spent:.3g}."
        )
