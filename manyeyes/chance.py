"""Chance: every random choice is a function of (seed, purpose, round, user), and of nothing else."""

from __future__ import annotations

import hashlib

import numpy as np


def key(seed: int, purpose: str, round: int = 0, user: int = 0) -> int:
    """A 128-bit key for one purpose of one user in one round; the same on every machine and in every process."""
    text = f"{seed}/{purpose}/{round}/{user}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


def generator(seed: int, purpose: str, round: int = 0, user: int = 0) -> np.random.Generator:
    """A generator of its own for one purpose of one user in one round."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, round, user)))
