"""Every pinned run and plan gives the numbers of its golden file.

On the machine of the file every bit is the same; on another kind of machine, all numbers are within its tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from manyeyes.algorithms import NAMED_ALGORITHMS
from tests import golden
from tests.golden import Record, differences, machine
from tests.golden_cases import ALGORITHMS, ENGINE_CASES, FEDDYN_CASES, FILES, PLAN_CASES, RUN_CASES

REWRITE = "; if this is intended, give the reason in the commit: python -m tests.golden_cases --write"
FAST_ON_EVERY_ENGINE = ("fedavg", "scaffold", "fedper")
SAME_RUNS = {"resumed": "uninterrupted", "resumed-personal": "uninterrupted-personal"}

load = cache(golden.load)


def is_slow(case: str) -> bool:
    """Return whether a case starts processes, has a large model, or is one of the many on another engine."""
    algorithm, _, engine = case.rpartition("-")
    if algorithm in ALGORITHMS:
        return engine != "reference" and algorithm not in FAST_ON_EVERY_ENGINE
    return case in ("two-ranks", "command") or "mobilenet" in case or "resnet" in case


def marked(cases: Iterable[str]) -> list[Any]:
    return [pytest.param(case, marks=pytest.mark.slow) if is_slow(case) else case for case in cases]


def assert_golden(file: str, case: str, record: Record) -> None:
    golden_file = load(file)
    is_same_machine = golden_file["machine"] == machine()
    wrong = differences(record, golden_file["cases"][case], is_same_machine, case)
    assert not wrong, f"{'; '.join(wrong)}{REWRITE}"


@pytest.mark.fast_cases("reference")
@pytest.mark.parametrize("case", marked(ENGINE_CASES))
def test_every_algorithm_gives_its_golden_numbers_on_every_engine(case: str) -> None:
    assert_golden("engines", case, ENGINE_CASES[case]())


@pytest.mark.parametrize("case", FEDDYN_CASES)
def test_feddyn_gives_its_golden_numbers_on_every_engine(case: str) -> None:
    assert_golden("feddyn", case, FEDDYN_CASES[case]())


@pytest.mark.fast_cases(
    "private-central",
    "private-adaptive",
    "personal-finetuned",
    "packed",
    "robust-median",
    "server-adam",
    "linear",
    "live-batch-norm",
    "augment",
    "resumed",
    "dealt-store",
)
@pytest.mark.parametrize("case", marked(RUN_CASES))
def test_every_kind_of_run_gives_its_golden_numbers(case: str) -> None:
    assert_golden("runs", case, RUN_CASES[case]())


@pytest.mark.parametrize("case", PLAN_CASES)
def test_every_plan_is_the_golden_one_on_every_machine(case: str) -> None:
    assert PLAN_CASES[case]() == load("plans")["cases"][case], f"{case} is planned differently{REWRITE}"


@pytest.mark.parametrize("case", SAME_RUNS)
def test_the_golden_numbers_of_a_resumed_run_are_those_of_the_uninterrupted_one(case: str) -> None:
    cases = load("runs")["cases"]
    assert cases[case] == cases[SAME_RUNS[case]]


@pytest.mark.parametrize("file", FILES)
def test_every_golden_number_has_a_case(file: str) -> None:
    assert load(file)["cases"].keys() == FILES[file][0].keys()


def test_every_named_algorithm_has_cases() -> None:
    assert {*ALGORITHMS.values(), "feddyn"} == set(NAMED_ALGORITHMS)


def test_another_machine_may_differ_by_rounding_only() -> None:
    pinned = {"sha256": "a", "loss": [1.0, 2.0]}
    assert differences({"sha256": "b", "loss": [1.0001, 2.0]}, pinned, exact=False) == []
    assert differences({"sha256": "a", "loss": [1.0, 2.01]}, pinned, exact=False) == [".loss[1] is 2.01 instead of 2.0"]
    assert differences({"sha256": "b", "loss": [1.0, 2.0]}, pinned, exact=True) == [".sha256 is 'b' instead of 'a'"]
