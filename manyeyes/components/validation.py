"""Bounds on the numbers that a person gives, with a sentence for each."""

from __future__ import annotations

import math
from numbers import Integral


def require_at_least(name: str, value: float, minimum: float) -> None:
    if not (math.isfinite(value) and value >= minimum):
        raise ValueError(f"{name} is {value}: it must be a number of at least {minimum}")


def require_int(name: str, value: int, minimum: int) -> None:
    if not (isinstance(value, Integral) and value >= minimum):
        raise ValueError(f"{name} is {value}: it must be a whole number of at least {minimum}")


def require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}: it must be a number above 0")


def require_fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}: it must be at least 0 and below 1")
