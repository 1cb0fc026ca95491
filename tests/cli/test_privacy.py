"""`manyeyes privacy plan`, from the words of a command to the table, the pictures and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

PLAN = ("privacy", "plan", "--users", "20", "--cohort", "10")
ALL = ("privacy", "plan", "--users", "20", "--sampling", "none")


def test_a_plan_is_printed_and_written_whole(tmp_path: Path, command: Any) -> None:
    words = ("--rounds", "100", "--epsilon", "2", "--clip", "0.5", "--parameters", "10000", "--out", "page")
    found = command(*PLAN, *words)
    assert (found.code, found.err) == (0, "")
    assert "noise (computed)" in found.out
    assert "signal to noise" in found.out
    assert "pictures and page: page/index.html" in found.out
    files = {f"{stem}.{kind}" for stem in ("noise", "epsilon", "signal") for kind in ("png", "svg")}
    assert {path.name for path in (tmp_path / "page").iterdir()} == {*files, "index.html"}
    with Image.open(tmp_path / "page" / "noise.png") as picture:
        assert picture.width > 500
    page = (tmp_path / "page" / "index.html").read_text()
    assert page.count("data:image/svg+xml") == 3
    assert "http" not in page.replace("http-equiv", "")  # it asks nothing of any server


@pytest.mark.parametrize(
    ("words", "computed"),
    [
        (("--rounds", "100", "--epsilon", "2"), "noise (computed)"),
        (("--rounds", "100", "--noise", "20"), "epsilon (computed)"),
        (("--epsilon", "2", "--noise", "20", "--delta", "1e-3"), "rounds (computed)"),
        (("--rounds", "100", "--noise", "20", "--epsilon", "2"), "delta (computed)"),
        (("--rounds", "5", "--noise", "20", "--accountant", "pld", "--precise"), "privacy loss distributions"),
    ],
)
def test_what_is_left_out_is_computed(words: tuple[str, ...], computed: str, command: Any) -> None:
    found = command(*ALL, *words)
    assert (found.code, found.err) == (0, "")
    assert computed in found.out


def test_a_simulated_cohort_says_so(command: Any) -> None:
    words = ("--cohort", "1", "--noise-cohort", "2", "--rounds", "100", "--noise", "10", "--sampling", "fixed")
    found = command("privacy", "plan", "--users", "20", *words)
    assert (found.code, found.err) == (0, "")
    assert "that of 2 users per round, simulated with 1" in found.out
    assert "1 users a round, 5 clips on their sum" in found.out
    assert "replace one user" in found.out


def test_without_sampling_nobody_is_drawn(tmp_path: Path, command: Any) -> None:
    found = command(*ALL, "--rounds", "10", "--noise", "10", "--out", "page")
    assert (found.code, found.err) == (0, "")
    assert "20, everyone" in found.out
    assert not (tmp_path / "page" / "noise.png").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "action"),
        (("plan",), "--users"),
        (("plan", "--users", "100", "--rounds", "5", "--noise", "1"), "--cohort"),
        (("plan", "--users", "many"), "many"),
        ((*PLAN[1:], "--rounds", "5"), "noise_multiplier and epsilon are missing"),
        ((*PLAN[1:], "--rounds", "5", "--noise", "1", "--epsilon", "1", "--delta", "auto"), "all four are set"),
        ((*PLAN[1:], "--rounds", "5", "--noise", "1", "--delta", "0"), "delta is 0.0"),
        ((*PLAN[1:], "--rounds", "5", "--noise", "1", "--delta", "some"), "some"),
        ((*PLAN[1:], "--rounds", "5", "--noise", "1", "--accountant", "prv"), "prv"),
        ((*PLAN[1:], "--rounds", "5", "--noise", "1", "--clip", "0"), "clip is 0.0"),
        ((*PLAN[1:], "--rounds", "5", "--noise", "1", "--parameters", "0"), "parameters is 0"),
        ((*PLAN[1:], "--rounds", "5", "--noise", "1", "--noise-cohort", "5"), "noise_cohort_size is 5"),
        ((*PLAN[1:], "--rounds", "5", "--noise", "1", "--noise-cohort", "2000"), "cohort_size is 2000"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_writes_nothing(
    words: tuple[str, ...], named: str, tmp_path: Path, command: Any
) -> None:
    found = command("privacy", *words)
    assert found.code in (1, 2)
    assert named in found.err
    assert found.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
