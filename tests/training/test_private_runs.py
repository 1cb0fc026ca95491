"""Private runs: the budget ends them, a resume continues the accounting, and the run reports what it spent."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from manyeyes.algorithms import fedavg
from manyeyes.components import MatchingLayers, NormLayers, PoissonSampler, WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.models import build_model
from manyeyes.privacy.accountant import PrivacyAccountant
from manyeyes.privacy.mechanisms import CentralDP, LocalDP
from manyeyes.training.checkpoint import load
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.result import Result
from manyeyes.training.run_folder import read_events
from tests.training import small_runs

CPU = torch.device("cpu")
NUM_USERS = 6  # of the train split of `population`
DELTA = 1e-3
FEDAVG = replace(fedavg(batch_size=4, lr=0.1), sampler=PoissonSampler(2), client_weighting=WeightUniformly())


def private(privacy: Any, **components: Any) -> Algorithm:
    return replace(FEDAVG, privacy=privacy, **components)


def run(population: Population, algorithm: Algorithm, folder: Path | None = None, **settings: Any) -> Result:
    return small_runs.run(population, algorithm, folder, **{"rounds": 6, "evaluate_every": 0, **settings})


def epsilons(result: Result) -> list[float]:
    return [event["epsilon"] for event in result.events if event["round"] > 0]


def epsilon_of(noise_multiplier: float, rounds: int) -> float:
    return PrivacyAccountant(NUM_USERS, 2, rounds, noise_multiplier).epsilon(DELTA)


def load_model(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_run_stops_before_the_round_that_would_exceed_its_budget(
    population: Population, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = epsilon_of(4.0, 4) + 1e-3
    assert budget < epsilon_of(4.0, 5)
    result = run(population, private(CentralDP(epsilon=budget, noise_multiplier=4.0, delta=DELTA)))
    assert epsilons(result) == pytest.approx([epsilon_of(4.0, rounds) for rounds in range(1, 5)])
    assert "The privacy budget allows 4 of 6 rounds: the run ends after round 4." in capsys.readouterr().err


def test_a_budget_smaller_than_one_round_is_refused(population: Population, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="One round spends more than the privacy budget: raise"):
        run(population, private(CentralDP(epsilon=0.01, noise_multiplier=0.5, delta=DELTA)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_a_noise_multiplier_the_budget_is_spent_in_the_last_round(population: Population) -> None:
    spent = epsilons(run(population, private(CentralDP(epsilon=3.0, delta=DELTA))))
    assert len(spent) == 6
    assert spent[-1] == pytest.approx(3.0, rel=1e-4)
    assert spent[-1] <= 3.0
    assert spent == sorted(spent)


def test_a_resumed_run_cannot_exceed_its_budget_either(population: Population, tmp_path: Path) -> None:
    algorithm = private(CentralDP(epsilon=epsilon_of(4.0, 4) + 1e-3, noise_multiplier=4.0, delta=DELTA))
    run(population, algorithm, tmp_path, rounds=2)
    assert len(epsilons(run(population, algorithm, tmp_path, rounds=50, resume=True))) == 4


@pytest.mark.slow
def test_a_noise_multiplier_calibrated_for_the_rounds_refuses_other_rounds_at_resume(
    population: Population, tmp_path: Path
) -> None:
    """The noise of the completed rounds was calibrated for the planned number of rounds."""
    run(population, private(CentralDP(epsilon=3.0, delta=DELTA)), tmp_path, rounds=2)
    with pytest.raises(ValueError, match="is complete after 2 rounds, for which its noise was calibrated: more rounds"):
        run(population, private(CentralDP(epsilon=3.0, delta=DELTA)), tmp_path, rounds=4, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "privacy",
    [
        CentralDP(
            epsilon=0,
            noise_multiplier=2.0,
            delta=DELTA,
            clipping_norm=0.3,
            target_quantile=0.5,
            reproducible_noise=True,
        ),
        LocalDP(3.0, delta=DELTA, reproducible_noise=True),
    ],
)
def test_a_resumed_run_has_the_epsilons_and_clipping_norms_of_one_that_was_never_stopped(
    population: Population, tmp_path: Path, privacy: Any
) -> None:
    uninterrupted = run(population, private(privacy), tmp_path / "uninterrupted")
    run(population, private(privacy), tmp_path / "resumed", rounds=3)
    resumed = run(population, private(privacy), tmp_path / "resumed", resume=True)
    assert epsilons(resumed) == epsilons(uninterrupted)
    norms = [[event.get("clipping_norm") for event in result.events] for result in (resumed, uninterrupted)]
    assert norms[0] == norms[1]
    assert small_runs.equal_tensors(load_model(tmp_path / "resumed"), load_model(tmp_path / "uninterrupted"))


def test_local_noise_is_accounted_for_the_client_that_took_part_most_often(population: Population) -> None:
    result = run(population, private(LocalDP(6.0, delta=DELTA)))
    spent = epsilons(result)
    possible = [0.0] + [PrivacyAccountant(1, 1, times, 3.0, "none").epsilon(DELTA) for times in range(1, 7)]
    assert all(any(math.isclose(value, epsilon) for epsilon in possible) for value in spent)
    assert spent == sorted(spent)


@pytest.mark.slow
def test_reproducible_noise_repeats_and_noise_of_the_operating_system_does_not(
    population: Population, tmp_path: Path
) -> None:
    seeded = CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA, reproducible_noise=True)
    for name, privacy in {"a": seeded, "b": seeded, "c": replace(seeded, reproducible_noise=False)}.items():
        run(population, private(privacy), tmp_path / name)
    run(population, private(replace(seeded, reproducible_noise=False)), tmp_path / "d")
    weights = {name: load_model(tmp_path / name)["fc.weight"] for name in "abcd"}
    assert torch.equal(weights["a"], weights["b"])
    assert not torch.equal(weights["c"], weights["d"])
    assert not torch.equal(weights["a"], weights["c"])


def test_private_personal_layers_stay_with_clients_and_get_no_noise(population: Population, tmp_path: Path) -> None:
    initial = build_model("linear", 3, size=8, seed=0)
    privacy = CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA)
    algorithm = private(privacy, personal_layers=MatchingLayers(("fc.bias",)))
    run(population, algorithm, tmp_path, model=initial)
    after = load_model(tmp_path)
    assert torch.equal(after["fc.bias"], initial.state_dict()["fc.bias"])  # the server's, which receives no others
    assert not torch.equal(after["fc.weight"], initial.state_dict()["fc.weight"])
    index = load(tmp_path / "checkpoint.safetensors", CPU).clients
    with closing(ClientStateStore(tmp_path / "clients.bin", CPU, 2**20, index, writes=False)) as clients:
        biases = [state["personal_weights"] for state in clients.values()]
    assert biases
    assert all(not torch.equal(bias, after["fc.bias"]) for bias in biases)


@pytest.mark.slow
def test_noise_on_batch_norms_statistics_is_refused(population: Population) -> None:
    with pytest.raises(ValueError, match=r"Noise would make BatchNorm's statistics useless: set model\.norm=group"):
        run(population, private(CentralDP()), model=build_model("resnet18", 3, norm="live"))


def test_statistics_that_stay_with_clients_get_no_noise(population: Population) -> None:
    initial = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    before = {name: tensor.clone() for name, tensor in initial.state_dict().items()}
    privacy = CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA)
    after = run(population, private(privacy, personal_layers=NormLayers()), model=initial).model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in ("1.running_mean", "1.running_var", "1.weight"))
    assert not torch.equal(after["3.weight"], before["3.weight"])
    with pytest.raises(ValueError, match="Noise would make BatchNorm's statistics useless"):
        run(population, private(privacy, personal_layers=MatchingLayers(("3.*",))), model=initial)


def test_the_epsilon_is_in_the_events_the_checkpoint_and_the_privacy_file(
    population: Population, tmp_path: Path
) -> None:
    privacy = CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA, clipping_norm=0.7)
    result = run(population, private(privacy), tmp_path)
    events = read_events(tmp_path / "metrics.jsonl")[1:]
    assert [event["epsilon"] for event in events] == pytest.approx([epsilon_of(2.0, rounds) for rounds in range(1, 7)])
    assert {event["clipping_norm"] for event in events} == {0.7}
    state = load(tmp_path / "checkpoint.safetensors", CPU).state
    assert (state.round, float(state.privacy_state["clip"])) == (6, 0.7)
    report = json.loads((tmp_path / "privacy.json").read_text())
    assert (report["rounds"], report["epsilon"]) == (6, pytest.approx(epsilons(result)[-1]))
    assert "differential privacy (add or remove one user), with 2 users per round" in report["guarantee"]
    assert "clipped at norm 0.7" in report["guarantee"]
    assert "a seed drawn by the operating system and not kept" in report["guarantee"]


def test_the_guarantee_is_about_the_rounds_that_the_budget_allows(population: Population, tmp_path: Path) -> None:
    run(population, private(CentralDP(epsilon=epsilon_of(4.0, 4) + 1e-3, noise_multiplier=4.0, delta=DELTA)), tmp_path)
    report = json.loads((tmp_path / "privacy.json").read_text())
    assert report["guarantee"].startswith(f"({epsilon_of(4.0, 4):.4g}, 0.001)-differential privacy")


def test_the_epsilon_is_in_the_progress_line(population: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    result = run(population, private(CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA)), progress=True)
    last = result.events[-1]
    assert f"6 of 6  accuracy {last['accuracy']:.3f}  epsilon {last['epsilon']:.2f}\n" in stderr.getvalue()
    assert "loss" not in stderr.getvalue()
    assert "images/s" not in stderr.getvalue()


def test_a_run_without_privacy_reports_no_epsilon(population: Population, tmp_path: Path) -> None:
    result = run(population, FEDAVG, tmp_path)
    assert not any({"epsilon", "clipping_norm"} & event.keys() for event in result.events)
    assert not (tmp_path / "privacy.json").exists()


FLAIR = (
    *("privacy=flair", "privacy.noise_cohort_size=20", "sampler=poisson", "sampler.cohort_size=4"),
    *("client_weighting=uniform", "algorithm=fedadam", "algorithm.server_lr=0.02", "data.task=coarse", "rounds=4"),
)


@pytest.mark.slow
def test_flairs_settings_run_from_the_command_to_the_privacy_file(
    tmp_path: Path, command: Callable[..., Any], tiny: tuple[str, ...]
) -> None:
    outcome = command("run", *tiny, *FLAIR, "folder=out")
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert report["epsilon"] == pytest.approx(2.0, rel=1e-4)
    assert "The noise is that of 20 users per round, simulated with 4" in report["guarantee"]
    assert "clipped near the 0.1 quantile of their norms, starting at 0.1" in report["guarantee"]
    events = read_events(tmp_path / "out" / "metrics.jsonl")
    assert events[-1]["epsilon"] == report["epsilon"]
    assert "clipping_norm: 0.1" in (tmp_path / "out" / "config.yaml").read_text()
    assert "macro_ap" in events[-1]


@pytest.mark.slow
def test_a_private_run_is_resumed_by_the_command(
    tmp_path: Path, command: Callable[..., Any], tiny: tuple[str, ...]
) -> None:
    fixed = (*tiny, *FLAIR, "privacy.noise_multiplier=4", "privacy.epsilon=0", "privacy.reproducible_noise=true")
    assert command("run", *fixed, "folder=uninterrupted", "rounds=6").code == 0
    assert command("run", *fixed, "folder=resumed", "rounds=3").code == 0
    outcome = command("run", "resume=resumed", "rounds=6")
    assert outcome.code == 0, outcome.err
    folders = (tmp_path / name for name in ("uninterrupted", "resumed"))
    uninterrupted, resumed = (read_events(folder / "metrics.jsonl") for folder in folders)
    for metric in ("epsilon", "loss"):
        assert [event.get(metric) for event in resumed] == [event.get(metric) for event in uninterrupted]
    assert "epsilon" in resumed[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("privacy=central", "client_weighting=examples"),
            "privacy=central needs uniform client weights: set client_weighting=uniform",
        ),
        (("privacy=flair", "client_weighting=uniform"), "privacy.noise_cohort_size=5000 is more than the"),
        (("privacy=magic",), "Unknown privacy 'magic'"),
        (("privacy=central", "sampler=size_weighted", "client_weighting=uniform"), "privacy=central has no accounting"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    command: Callable[..., Any], tiny: tuple[str, ...], args: tuple[str, ...], message: str
) -> None:
    outcome = command("run", *tiny, *args, "rounds=2", "folder=out")
    assert outcome.code == 2
    assert message in outcome.err
    assert [line for line in outcome.err.splitlines() if message in line] == outcome.err.splitlines()[-1:]
