"""`manyeyes estimate`: from settings to a table of costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyeyes.cli.estimate import training_population
from manyeyes.config.build import build_population
from manyeyes.config.compose import compose_config
from manyeyes.privacy.calibration import calibrate

TINY = ("data.users=40", "data.images_per_user=12", "model=linear", "algorithm.batch_size=6", "algorithm.cohort_size=4")
FAST = ("--images-per-second", "100", "--bandwidth", "1000000")
PRIVATE = ("sampler=poisson", "sampler.cohort_size=4", "client_weighting=uniform", "privacy=central")


def rows(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| ")]


@pytest.mark.slow
def test_a_table_by_hand(command: Callable[..., Any], tmp_path: Path) -> None:
    """32 users of 12 images; a linear model of 10 (3,072 + 1) numbers, 122,920 bytes; 48 images at 100 per second."""
    outcome = command("estimate", *TINY, "rounds=1000", "--ranks", "1,2", "--cohorts", "4,8", *FAST)
    assert (outcome.code, outcome.err) == (0, "")
    assert "32 users with 384 images" in outcome.out
    assert "uploads 122.9 kB and downloads 122.9 kB per round" in outcome.out
    table = rows(outcome.out)
    assert table[1] == ["4", "1", "48", "0.48", "0%", "491.7 kB", "491.7 kB", "245.8 kB", table[1][8], "8.0 min"]
    assert table[2][:4] == ["4", "2", "48", "0.24"]
    assert table[4][:4] == ["8", "2", "96", "0.48"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_settings_are_those_of_a_run(command: Callable[..., Any]) -> None:
    outcome = command("estimate", *TINY, "algorithm=scaffold", "compressor=int8", "--ranks", "1", *FAST)
    size = 30730
    assert f"uploads {(size + 4 * 31 + 4 * size) / 1000:.1f} kB" in outcome.out
    assert f"keeps {4 * size / 1000:.1f} kB between rounds ({32 * 4 * size / 1e6:.1f} MB for all users)" in outcome.out


@pytest.mark.slow
def test_a_privacy_budget_shortens_the_run(command: Callable[..., Any]) -> None:
    settings = (*TINY, *PRIVATE, "privacy.noise_multiplier=1", "privacy.epsilon=8", "rounds=300", "--ranks", "1", *FAST)
    outcome = command("estimate", *settings, "--cohorts", "2,4")
    allowed = calibrate(32, 4, noise_multiplier=1, epsilon=8).accountant.rounds
    assert 1 < allowed < 300
    for row, rounds in zip(rows(outcome.out)[1:], (300, allowed), strict=True):
        assert float(row[9].removesuffix(" s")) == pytest.approx(rounds * float(row[3]), rel=0.01)
    assert f"Cohort 4: the privacy budget allows {allowed} of 300 rounds.\n" in outcome.out
    spent = calibrate(32, 4, rounds=allowed, noise_multiplier=1).epsilon
    assert f"Cohort 4: ({spent:.4g}, 0.0221)-differential privacy" in outcome.out
    assert "Cohort 2: the privacy budget" not in outcome.out


@pytest.mark.slow
def test_the_noise_that_a_budget_needs_is_named(command: Callable[..., Any]) -> None:
    outcome = command("estimate", *TINY, *PRIVATE, "privacy.epsilon=8", "rounds=300", "--ranks", "1", *FAST)
    noise_multiplier = calibrate(32, 4, rounds=300, epsilon=8).accountant.noise_multiplier
    assert "Cohort 4: (8, 0.0221)-differential privacy" in outcome.out
    assert f"the noise multiplier is {noise_multiplier:.4g}" in outcome.out
    assert "the privacy budget allows" not in outcome.out


@pytest.mark.slow
def test_the_speed_is_measured_and_cached(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = (command("estimate", *TINY, "--ranks", "1") for _ in range(2))
    assert (first.code, first.out) == (0, second.out)
    assert (tmp_path / "cache" / "manyeyes" / "throughput.json").exists()


def test_synthetic_users_lack_only_their_images() -> None:
    config = compose_config(["data.users=50", "data.task=fine"])
    with_images = build_population(config).split("train")
    population = training_population(config)
    assert np.array_equal(population.num_examples, with_images.num_examples)
    assert len(population.classes) == len(with_images.classes)
    assert population.image_shape == with_images.image_shape


@pytest.mark.slow
def test_a_partitioner_decides_the_users() -> None:
    population = training_population(compose_config([*TINY, "partitioner=iid", "partitioner.num_clients=7"]))
    assert len(population.user_ids) == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--ranks", "0"), "argument --ranks: '0': give whole numbers of at least 1, separated by commas"),
        (("--images-per-second", "no"), "argument --images-per-second: 'no': give a number above 0"),
        (("--cohorts", "33"), "cohort_size=33 is more than the 32 training users"),
        (("sampler=centralized",), "sampler=centralized has no clients"),
        (("sampler=all", "--cohorts", "3"), "AllClients takes all 32 users: leave out --cohorts"),
        ((*PRIVATE, "privacy.noise_multiplier=0.01"), "One round spends more than the privacy budget"),
        ((*PRIVATE, "model=resnet18", "model.norm=live"), "Noise would make BatchNorm's statistics useless"),
        (("rounds=-3",), "rounds is -3"),
        (("modle=linear",), "modle"),
        (("data.task=color",), "data.task is 'color': choose single, coarse, fine, rating"),
    ],
)
def test_a_mistake_is_one_sentence(command: Callable[..., Any], arguments: tuple[str, ...], reason: str) -> None:
    outcome = command("estimate", *TINY, *arguments)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("manyeyes: ")
    assert reason in outcome.err
