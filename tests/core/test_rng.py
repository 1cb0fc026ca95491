"""Random numbers are a function of (seed, purpose, round, user) only."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from manyeyes.core.rng import derive_key, make_rng, make_rngs

PURPOSES = st.tuples(
    st.integers(0, 2**63), st.sampled_from(["cohort", "draw", "augment"]), st.integers(0, 999), st.integers(0, 99999)
)


@given(PURPOSES)
def test_the_same_key_gives_the_same_numbers(key: tuple[int, str, int, int]) -> None:
    np.testing.assert_array_equal(make_rng(*key).random(4), make_rng(*key).random(4))


@given(st.lists(PURPOSES, min_size=2, max_size=20, unique=True))
def test_different_keys_give_different_numbers(keys: list[tuple[int, str, int, int]]) -> None:
    assert len({derive_key(*key) for key in keys}) == len(keys)
    assert len({make_rng(*key).bytes(8) for key in keys}) == len(keys)


@given(PURPOSES, st.lists(st.integers(0, 2**40), max_size=5))
def test_generators_of_several_users_equal_single_ones(key: tuple[int, str, int, int], users: list[int]) -> None:
    """Also after half of a 64-bit number was drawn from the last one."""
    for user, rng in zip(users, make_rngs(*key[:3], users), strict=True):
        single = make_rng(*key[:3], user)
        for draw in (lambda g: g.integers(9, dtype=np.uint32), lambda g: g.permutation(7), lambda g: g.random(3)):
            np.testing.assert_array_equal(draw(rng), draw(single))


def test_the_global_generator_is_neither_read_nor_changed() -> None:
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    first = make_rng(1, "draw", 2, 3).random(4)
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], before)  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    np.testing.assert_array_equal(make_rng(1, "draw", 2, 3).random(4), first)


def test_the_key_is_a_digest() -> None:
    expected = hashlib.blake2b(b"7/draw/3/12", digest_size=16).digest()
    assert derive_key(7, "draw", 3, 12) == int.from_bytes(expected, "little")


def test_another_process_gives_the_same_numbers() -> None:
    """Python's own hash of a string differs between processes."""
    code = "from manyeyes.core.rng import make_rng; print(make_rng(7, 'draw', 3, 12).integers(2**62))"
    outputs = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout}
    assert outputs == {f"{make_rng(7, 'draw', 3, 12).integers(2**62)}\n"}
