"""What the Gaussian mechanism gives away."""

from __future__ import annotations

import math

from scipy.stats import norm


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """Of the Gaussian mechanism with sensitivity 1, exactly (Balle and Wang 2018, theorem 8)."""
    a, b = 0.5 / sigma, epsilon * sigma
    return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b))
