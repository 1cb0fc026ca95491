"""Chance is a function of (seed, purpose, round, user) and of nothing else."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from manyeyes.core.rng import derive_key, make_rng, make_rngs

QUESTIONS = st.tuples(
    st.integers(0, 2**63), st.sampled_from(["cohort", "draw", "augment"]), st.integers(0, 999), st.integers(0, 99999)
)


@given(QUESTIONS)
def test_asked_again_it_answers_the_same(question: tuple[int, str, int, int]) -> None:
    np.testing.assert_array_equal(make_rng(*question).random(4), make_rng(*question).random(4))


@given(st.lists(QUESTIONS, min_size=2, max_size=20, unique=True))
def test_different_questions_have_different_answers(questions: list[tuple[int, str, int, int]]) -> None:
    assert len({derive_key(*question) for question in questions}) == len(questions)
    assert len({make_rng(*question).bytes(8) for question in questions}) == len(questions)


@given(QUESTIONS, st.lists(st.integers(0, 2**40), max_size=5))
def test_users_asked_in_turn_answer_as_each_alone(question: tuple[int, str, int, int], users: list[int]) -> None:
    """Whatever was drawn before, and be it half of a 64-bit number."""
    for user, rng in zip(users, make_rngs(*question[:3], users), strict=True):
        alone = make_rng(*question[:3], user)
        for draw in (lambda g: g.integers(9, dtype=np.uint32), lambda g: g.permutation(7), lambda g: g.random(3)):
            np.testing.assert_array_equal(draw(rng), draw(alone))


def test_it_neither_reads_nor_moves_the_global_generator() -> None:
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = make_rng(1, "draw", 2, 3).random(4)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    np.testing.assert_array_equal(make_rng(1, "draw", 2, 3).random(4), first)


def test_key_is_the_digest_of_the_question() -> None:
    expected = hashlib.blake2b(b"7/draw/3/12", digest_size=16).digest()
    assert derive_key(7, "draw", 3, 12) == int.from_bytes(expected, "little")


def test_another_process_answers_the_same() -> None:
    """Not so for Python's own hash of a string."""
    code = "from manyeyes.core.rng import make_rng; print(make_rng(7, 'draw', 3, 12).integers(2**62))"
    answers = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout}
    assert answers == {f"{make_rng(7, 'draw', 3, 12).integers(2**62)}\n"}
