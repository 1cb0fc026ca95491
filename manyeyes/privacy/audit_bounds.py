"""What an attack proves: lower bounds on epsilon from how often it guessed right who took part."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

from manyeyes.components.validation import require_at_least, require_int
from manyeyes.privacy.accountant import check_delta

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
