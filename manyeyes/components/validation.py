"""Checks of option values; each names the option, the value given and what it must be."""

from __future__ import annotations

import math
from numbers import Integral


def require_at_least(name: str, value: float, minimum: float) -> None:
    """Raise ValueError unless `value` is finite and at least `minimum`."""
    if not (math.isfinite(value) and value >= minimum):
        raise ValueError(f"{name} is {value}: it must be a number of at least {minimum}")


def require_int(name: str, value: int, minimum: int) -> None:
    """Raise ValueError unless `value` is a whole number of at least `minimum`."""
    if not (isinstance(value, Integral) and value >= minimum):
        raise ValueError(f"{name} is {value}: it must be a whole number of at least {minimum}")


def require_positive(name: str, value: float) -> None:
    """Raise ValueError unless `value` is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}: it must be a number above 0")


def require_fraction(name: str, value: float) -> None:
    """Raise ValueError unless `value` is at least 0 and below 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}: it must be at least 0 and below 1")
