"""`manyeyes privacy plan`, from the argv of a command to the table, the pictures and the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PLAN = ("privacy", "plan", "--users", "20", "--cohort-size", "10")
ALL = ("privacy", "plan", "--users", "20", "--sampling", "none")


@pytest.mark.slow
def test_a_plan_is_printed_and_written_as_a_page_with_its_charts(tmp_path: Path, command: Any) -> None:
    options = ("--clipping-norm", "0.5", "--num-parameters", "10000", "--out", "page")
    outcome = command(*PLAN, "--rounds", "100", "--epsilon", "2", *options)
    assert (outcome.code, outcome.err) == (0, "")
    assert "noise multiplier (computed)" in outcome.out
    assert "signal to noise" in outcome.out
    assert "charts and page: page/index.html" in outcome.out
    files = {f"{name}.{suffix}" for name in ("noise", "epsilon", "signal") for suffix in ("csv", "svg")}
    assert {*files, "index.html"} <= {path.name for path in (tmp_path / "page").iterdir()}
    page = (tmp_path / "page" / "index.html").read_text()
    assert page.count("<figure") == 3
    assert not re.search(r"(src|href|url)\W+https?:", page)  # self-contained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "computed"),
    [
        (("--rounds", "100", "--epsilon", "2"), "noise multiplier (computed)"),
        (("--rounds", "100", "--noise-multiplier", "20"), "epsilon (computed)"),
        (("--epsilon", "2", "--noise-multiplier", "20", "--delta", "1e-3"), "rounds (computed)"),
        (("--rounds", "100", "--noise-multiplier", "20", "--epsilon", "2"), "delta (computed)"),
        (
            ("--rounds", "5", "--noise-multiplier", "20", "--accountant", "pld", "--precise"),
            "privacy loss distributions",
        ),
    ],
)
def test_the_option_that_is_left_out_is_computed(argv: tuple[str, ...], computed: str, command: Any) -> None:
    outcome = command(*ALL, *argv)
    assert (outcome.code, outcome.err) == (0, "")
    assert computed in outcome.out


@pytest.mark.slow
def test_a_simulated_cohort_is_named(command: Any) -> None:
    argv = (
        "--cohort-size",
        "1",
        "--noise-cohort-size",
        "2",
        "--rounds",
        "100",
        "--noise-multiplier",
        "10",
        "--sampling",
        "fixed",
    )
    outcome = command("privacy", "plan", "--users", "20", *argv)
    assert (outcome.code, outcome.err) == (0, "")
    assert "that of 2 users per round, simulated with 1" in outcome.out
    assert "1 users per round, 5 clipping norms on their sum" in outcome.out
    assert "replace one user" in outcome.out


def test_without_sampling_all_users_train(tmp_path: Path, command: Any) -> None:
    outcome = command(*ALL, "--rounds", "10", "--noise-multiplier", "10", "--out", "page")
    assert (outcome.code, outcome.err) == (0, "")
    assert "20, all users" in outcome.out
    assert not (tmp_path / "page" / "noise.svg").exists()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ((), "action"),
        (("plan",), "--users"),
        (("plan", "--users", "100", "--rounds", "5", "--noise-multiplier", "1"), "--cohort-size"),
        (("plan", "--users", "many"), "many"),
        ((*PLAN[1:], "--rounds", "5"), "noise_multiplier and epsilon are missing"),
        (
            (*PLAN[1:], "--rounds", "5", "--noise-multiplier", "1", "--epsilon", "1", "--delta", "auto"),
            "all four are set",
        ),
        ((*PLAN[1:], "--rounds", "5", "--noise-multiplier", "1", "--delta", "0"), "delta is 0.0"),
        ((*PLAN[1:], "--rounds", "5", "--noise-multiplier", "1", "--delta", "some"), "some"),
        ((*PLAN[1:], "--rounds", "5", "--noise-multiplier", "1", "--accountant", "prv"), "prv"),
        ((*PLAN[1:], "--rounds", "5", "--noise-multiplier", "1", "--clipping-norm", "0"), "clipping_norm is 0.0"),
        ((*PLAN[1:], "--rounds", "5", "--noise-multiplier", "1", "--num-parameters", "0"), "num_parameters is 0"),
        ((*PLAN[1:], "--rounds", "5", "--noise-multiplier", "1", "--noise-cohort-size", "5"), "noise_cohort_size is 5"),
        ((*PLAN[1:], "--rounds", "5", "--noise-multiplier", "1", "--noise-cohort-size", "2000"), "cohort_size is 2000"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(
    argv: tuple[str, ...], named: str, tmp_path: Path, command: Any
) -> None:
    outcome = command("privacy", *argv)
    assert outcome.code in (1, 2)
    assert named in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
