"""What `manyeyes run` says of a run before it starts, and of one that was complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyeyes.components import PoissonSampler, SizeWeightedSampler, UniformSampler, WeightByExamples, WeightUniformly
from manyeyes.config.build import build_algorithm, privacy_notes
from manyeyes.config.compose import compose_config
from manyeyes.core.population import Population
from manyeyes.training.run_files import read_config


def test_privacy_chooses_uniform_client_weights() -> None:
    config = compose_config(["privacy=central"])
    algorithm = build_algorithm(config)
    assert (algorithm.client_weighting, algorithm.sampler) == (WeightUniformly(), UniformSampler(10))
    assert privacy_notes(config) == [
        "privacy=central sets client_weighting=uniform instead of fedavg's client_weighting=examples."
    ]


def test_privacy_replaces_a_sampler_without_accounting_by_one_of_the_same_expected_cohort() -> None:
    config = compose_config(["algorithm=fedvc", "algorithm.cohort_size=7", "privacy=central"])
    assert build_algorithm(config).sampler == PoissonSampler(7)
    assert privacy_notes(config) == ["privacy=central sets sampler=poisson instead of fedvc's sampler=size_weighted."]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slot", "settings", "chosen"),
    [
        ("client_weighting", ["client_weighting=examples"], WeightByExamples()),
        ("sampler", ["sampler=size_weighted", "sampler.cohort_size=2"], SizeWeightedSampler(2)),
    ],
)
def test_what_the_settings_choose_is_kept_and_refused(
    slot: str, settings: list[str], chosen: Any, population: Population
) -> None:
    algorithm = build_algorithm(compose_config(["privacy=central", "algorithm.cohort_size=2", *settings]))
    assert getattr(algorithm, slot) == chosen
    with pytest.raises(ValueError, match=f"set {slot}="):
        algorithm.validate(population)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fednova", "scaffold", "fedir"])
def test_an_algorithm_that_privacy_does_not_cover_is_not_changed_into_another(
    name: str, population: Population
) -> None:
    config = compose_config(["privacy=central", f"algorithm={name}", "algorithm.cohort_size=2"])
    with pytest.raises(ValueError, match="privacy=central"):
        build_algorithm(config).validate(population)


def test_without_privacy_nothing_is_replaced() -> None:
    assert privacy_notes(compose_config(["algorithm=fedvc"])) == []


@pytest.mark.slow
def test_a_private_run_records_what_it_chose_and_resumes_with_it(
    command: Any, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    outcome = command("run", *tiny, "rounds=2", "privacy=central", "folder=run")
    assert outcome.code == 0
    assert "sets client_weighting=uniform" in outcome.err
    assert read_config(tmp_path / "run")["client_weighting"] == {"name": "uniform"}
    again = command("run", "resume=run")
    complete = "The run in run was complete after round 2, and nothing was trained"
    reason = "its noise was calibrated for this number of rounds, and more of them need a new run"
    assert (again.code, again.err) == (0, f"{complete}: {reason}.\n")  # whose rounds are part of the guarantee
    longer = command("run", "resume=run", "rounds=3")
    reason = "is a private run that is complete after 2 rounds, for which its noise was calibrated"
    assert (longer.code, longer.err) == (2, f"manyeyes: run {reason}: more rounds need a new run.\n")


@pytest.mark.slow
def test_resuming_a_complete_run_says_so(command: Any, tiny: tuple[str, ...]) -> None:
    first = command("run", *tiny, "rounds=1", "folder=run")
    again = command("run", "resume=run")
    assert (again.code, again.out) == (0, first.out)
    fix = "add rounds=N with N above 1 to continue it"
    assert again.err == f"The run in run was complete after round 1, and nothing was trained: {fix}.\n"
    assert "complete" not in command("run", "resume=run", "rounds=2").err
