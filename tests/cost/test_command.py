"""`manyeyes plan`: from the words of a run to a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyeyes.cli.estimate import duration, population_of, size
from manyeyes.config.build import build_population
from manyeyes.config.compose import compose_config
from manyeyes.privacy.calibration import calibrate

TINY = ("data.users=40", "data.images_per_user=12", "model=linear", "algorithm.batch_size=6", "algorithm.cohort_size=4")
FAST = ("--images-per-second", "100", "--bandwidth", "1000000")


def rows(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| ")]


def test_a_table_by_hand(command: Callable[..., Any], tmp_path: Path) -> None:
    """32 users of 12 photos; a linear model of 10 (3,072 + 1) numbers, 122,920 bytes; 48 images at 100 a second."""
    found = command("plan", *TINY, "rounds=1000", "--ranks", "1,2", "--cohorts", "4,8", *FAST)
    assert (found.code, found.err) == (0, "")
    assert "32 users with 384 images" in found.out
    assert "sends 123 kB and is sent 123 kB a round" in found.out
    table = rows(found.out)
    assert table[1] == ["4", "1", "48", "0.48", "0%", "492 kB", "492 kB", "246 kB", table[1][8], "8.0 min"]
    assert table[2][:4] == ["4", "2", "48", "0.24"]
    assert table[4][:4] == ["8", "2", "96", "0.48"]
    assert list(tmp_path.iterdir()) == []


def test_settings_are_those_of_a_run(command: Callable[..., Any]) -> None:
    found = command("plan", *TINY, "algorithm=scaffold", "compress=int8", "--ranks", "1", *FAST)
    numbers = 30730
    assert f"sends {(numbers + 4 * 31 + 4 * numbers) / 1000:.3g} kB" in found.out
    assert (
        f"keeps {4 * numbers / 1000:.3g} kB between rounds ({32 * 4 * numbers / 1e6:.3g} MB for all users)" in found.out
    )


PRIVATE = ("algorithm.select=poisson", "algorithm.weigh=equally", "privacy=central")


def test_a_privacy_budget_shortens_the_run(command: Callable[..., Any]) -> None:
    words = (*TINY, *PRIVATE, "privacy.noise=1", "privacy.epsilon=8", "rounds=300", "--ranks", "1", *FAST)
    found = command("plan", *words, "--cohorts", "2,4")
    allowed = calibrate(32, 4, noise_multiplier=1, epsilon=8).accountant.rounds
    assert 1 < allowed < 300
    for row, rounds in zip(rows(found.out)[1:], (300, allowed), strict=True):
        assert float(row[9].removesuffix(" s")) == pytest.approx(rounds * float(row[3]), rel=0.01)
    assert f"Cohort 4: the privacy budget allows {allowed} of 300 rounds: the run ends there.\n" in found.out
    spent = calibrate(32, 4, rounds=allowed, noise_multiplier=1).epsilon
    assert f"Cohort 4: ({spent:.4g}, 0.0221)-differential privacy" in found.out
    assert "Cohort 2: the privacy budget" not in found.out


def test_the_noise_that_a_budget_wants_is_named(command: Callable[..., Any]) -> None:
    found = command("plan", *TINY, *PRIVATE, "privacy.epsilon=8", "rounds=300", "--ranks", "1", *FAST)
    assert "Cohort 4: (8, 0.0221)-differential privacy" in found.out
    assert (
        f"the noise multiplier is {calibrate(32, 4, rounds=300, epsilon=8).accountant.noise_multiplier:.4g}"
        in found.out
    )
    assert "the privacy budget allows" not in found.out


def test_without_a_speed_one_is_measured_and_remembered(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, again = (command("plan", *TINY, "--ranks", "1") for _ in range(2))
    assert (first.code, first.out) == (0, again.out)
    assert (tmp_path / "cache" / "manyeyes" / "pace.json").exists()


def test_of_a_world_only_the_photographs_are_left_out() -> None:
    config = compose_config(["data.users=50", "data.task=fine"])
    made = build_population(config).split("train")
    found = population_of(config)
    assert np.array_equal(found.num_examples, made.num_examples)
    assert (len(found.classes), found.image_shape) == (len(made.classes), made.image_shape)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--ranks", "0"), "argument --ranks: '0': give whole numbers of at least 1 with commas between"),
        (("--images-per-second", "no"), "argument --images-per-second: 'no': give a number above 0"),
        (("--cohorts", "33"), "a cohort of 33 clients is asked of 32 users"),
        (("algorithm=centralized",), "centralised training has no clients to plan for"),
        (("algorithm=local_only", "--cohorts", "3"), "Everyone takes all 32: leave out --cohorts"),
        ((*PRIVATE, "privacy.noise=0.01"), "one round would already spend more than the privacy budget"),
        ((*PRIVATE, "model=resnet18", "model.norm=batch"), "noise would make BatchNorm's statistics useless"),
        (("rounds=-3",), "rounds is -3: it must be at least 1"),
        (("modle=linear",), "modle is no setting (did you mean model?)"),
        (("data.task=colour",), "no labels are called 'colour': a world has single, coarse, fine, rating"),
    ],
)
def test_wrong_words_are_one_sentence(command: Callable[..., Any], words: tuple[str, ...], reason: str) -> None:
    found = command("plan", *TINY, *words)
    assert (found.code, found.out, found.err.count("\n")) == (1, "", 1)
    assert found.err.startswith(f"manyeyes: {reason}")


def test_sizes_and_times_as_a_person_writes_them() -> None:
    assert [size(n) for n in (0, 999, 1000, 123_456, 44_726_568, 9e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "123 kB",
        "44.7 MB",
        "9 GB",
    ]
    assert [duration(s) for s in (0.5, 119, 120, 7200, 200_000)] == ["0.5 s", "119 s", "2.0 min", "2.0 h", "2.3 d"]
