"""Functions in a process of their own: their results, their errors, and an end if they give no sign of life."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from manyeyes.io.child_process import SIGN_SECONDS, SignOfLife, call_in_process

CONTEXT = multiprocessing.get_context("spawn")  # which every system has
LONG_ENOUGH = 60.0


def double(values: list[int], _: SignOfLife) -> list[int]:
    return [2 * value for value in values]


def fail(_: SignOfLife) -> None:
    raise KeyError("a name")


def loop(_: SignOfLife) -> None:
    while True:
        pass


def work_slowly(steps: int, sign_of_life: SignOfLife) -> int:
    for _ in range(steps):
        time.sleep(1.1 * SIGN_SECONDS)
        sign_of_life()
    return steps


def end(_: SignOfLife) -> None:
    os._exit(0)


def test_the_result_is_returned() -> None:
    assert call_in_process(CONTEXT, LONG_ENOUGH, double, [1, 2]) == [2, 4]


def test_an_error_is_raised_here() -> None:
    with pytest.raises(KeyError, match="a name"):
        call_in_process(CONTEXT, LONG_ENOUGH, fail)


def test_a_loop_ends_after_the_limit() -> None:
    with pytest.raises(TimeoutError, match=r"no answer for 0\.2 s"):
        call_in_process(CONTEXT, 0.2, loop)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_signs_of_life_extend_the_limit() -> None:
    fork = multiprocessing.get_context("fork")  # starts at once
    assert call_in_process(fork, 5 * SIGN_SECONDS, work_slowly, 6) == 6


def test_a_process_that_ends_without_an_answer_is_an_error() -> None:
    with pytest.raises(ChildProcessError, match="ended without an answer"):
        call_in_process(CONTEXT, LONG_ENOUGH, end)
