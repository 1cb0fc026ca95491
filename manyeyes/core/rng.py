"""Random numbers: every random choice is a function of (seed, purpose, round, user) only."""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np


def derive_key(seed: int, purpose: str, round: int = 0, user: int | str = 0) -> int:
    """Return a 128-bit key for one purpose of one user in one round, the same on every machine."""
    text = f"{seed}/{purpose}/{round}/{user}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


def make_rng(seed: int, purpose: str, round: int = 0, user: int | str = 0) -> np.random.Generator:
    """Return the generator for one purpose of one user in one round."""
    return np.random.Generator(np.random.Philox(key=derive_key(seed, purpose, round, user)))


def make_rngs(seed: int, purpose: str, round: int, users: Iterable[int | str]) -> Iterator[np.random.Generator]:
    """Yield the generators that `make_rng` returns for each user: one object, reset for each, which is far cheaper."""
    bits = np.random.Philox(key=0)
    rng, start = np.random.Generator(bits), bits.state
    key = start["state"]["key"]
    for user in users:
        key[1], key[0] = divmod(derive_key(seed, purpose, round, user), 2**64)
        bits.state = start
        yield rng
