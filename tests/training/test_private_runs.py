"""Private training from the first round to the last: budgets end it, ledgers go on, and the run says what it spent."""

from __future__ import annotations

import json
import math
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
from manyeyes.training import loop as playing
from manyeyes.training.checkpoint import load
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.result import Result
from manyeyes.training.run_folder import RunFolder, read_events
from manyeyes.training.train import train

CPU = torch.device("cpu")
TRAINED = 6  # users of the train split of `people`
DELTA = 1e-3
PLAIN = replace(fedavg(batch_size=4, lr=0.1), sampler=PoissonSampler(2), client_weighting=WeightUniformly())


def private(privacy: Any, **slots: Any) -> Algorithm:
    return replace(PLAIN, privacy=privacy, **slots)


def run(people: Population, algorithm: Algorithm, folder: Path | None = None, **settings: Any) -> Result:
    settings = {"rounds": 6, "evaluate_every": 0, "checkpoint_seconds": 0, "progress": False, **settings}
    return train(people, settings.pop("model", "linear"), algorithm, folder=folder, engine="reference", **settings)


def epsilons(result: Result) -> list[float]:
    return [event["epsilon"] for event in result.events if event["round"] > 0]


def by_hand(noise: float, rounds: int) -> float:
    return PrivacyAccountant(TRAINED, 2, rounds, noise).epsilon(DELTA)


def model(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


# The budget


def test_a_run_stops_before_the_round_that_would_exceed_its_budget(
    people: Population, capsys: pytest.CaptureFixture[str]
) -> None:
    noise, budget = 4.0, by_hand(4.0, 4) + 1e-3
    assert budget < by_hand(noise, 5)
    result = run(people, private(CentralDP(epsilon=budget, noise_multiplier=noise, delta=DELTA)))
    assert epsilons(result) == pytest.approx([by_hand(noise, rounds) for rounds in range(1, 5)])
    assert "the privacy budget allows 4 of 6 rounds: the run ends there" in capsys.readouterr().err


def test_a_budget_that_not_even_one_round_keeps_is_refused(people: Population, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one round would already spend more than the privacy budget"):
        run(people, private(CentralDP(epsilon=0.01, noise_multiplier=0.5, delta=DELTA)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_a_noise_the_budget_is_spent_in_the_last_round(people: Population) -> None:
    spent = epsilons(run(people, private(CentralDP(epsilon=3.0, delta=DELTA))))
    assert len(spent) == 6
    assert spent[-1] == pytest.approx(3.0, rel=1e-4)
    assert spent[-1] <= 3.0
    assert spent == sorted(spent)


def test_a_continued_run_cannot_go_beyond_its_budget_either(people: Population, tmp_path: Path) -> None:
    algorithm = private(CentralDP(epsilon=by_hand(4.0, 4) + 1e-3, noise_multiplier=4.0, delta=DELTA))
    run(people, algorithm, tmp_path, rounds=2)
    assert len(epsilons(run(people, algorithm, tmp_path, rounds=50, resume=True))) == 4


def test_a_noise_that_follows_from_the_rounds_is_not_continued_with_others(people: Population, tmp_path: Path) -> None:
    """The noise of the rounds already played was right for as many rounds as were planned."""
    run(people, private(CentralDP(epsilon=3.0, delta=DELTA)), tmp_path, rounds=2)
    with pytest.raises(ValueError, match="is a run of other data, model, algorithm or seed"):
        run(people, private(CentralDP(epsilon=3.0, delta=DELTA)), tmp_path, rounds=4, resume=True)


# Going on


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
def test_a_continued_run_has_the_ledger_and_the_clip_of_one_that_was_never_stopped(
    people: Population, tmp_path: Path, privacy: Any
) -> None:
    straight = run(people, private(privacy), tmp_path / "straight")
    run(people, private(privacy), tmp_path / "parts", rounds=3)
    parts = run(people, private(privacy), tmp_path / "parts", resume=True)
    assert epsilons(parts) == epsilons(straight)
    assert [event.get("clip") for event in parts.events] == [event.get("clip") for event in straight.events]
    for name, tensor in model(tmp_path / "straight").items():
        assert torch.equal(model(tmp_path / "parts")[name], tensor)


def test_local_noise_is_accounted_by_who_came_most_often(people: Population) -> None:
    result = run(people, private(LocalDP(6.0, delta=DELTA)))
    spent = epsilons(result)
    possible = [0.0] + [PrivacyAccountant(1, 1, times, 3.0, "none").epsilon(DELTA) for times in range(1, 7)]
    assert all(any(math.isclose(value, one) for one in possible) for value in spent)
    assert spent == sorted(spent)


# Noise


def test_reproducible_noise_repeats_and_the_systems_does_not(people: Population, tmp_path: Path) -> None:
    seeded = CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA, reproducible_noise=True)
    for name, privacy in {"a": seeded, "b": seeded, "c": replace(seeded, reproducible_noise=False)}.items():
        run(people, private(privacy), tmp_path / name)
    run(people, private(replace(seeded, reproducible_noise=False)), tmp_path / "d")
    weights = {name: model(tmp_path / name)["fc.weight"] for name in "abcd"}
    assert torch.equal(weights["a"], weights["b"])
    assert not torch.equal(weights["c"], weights["d"])
    assert not torch.equal(weights["a"], weights["c"])


def test_private_personal_layers_stay_and_are_not_noisy(people: Population, tmp_path: Path) -> None:
    begun = build_model("linear", 3, size=8, seed=0)
    algorithm = private(CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA), personal=MatchingLayers(("fc.bias",)))
    run(people, algorithm, tmp_path, model=begun)
    after = model(tmp_path)
    assert torch.equal(after["fc.bias"], begun.state_dict()["fc.bias"])  # the server's, whom nobody has told of others
    assert not torch.equal(after["fc.weight"], begun.state_dict()["fc.weight"])
    index = load(tmp_path / "checkpoint.safetensors", CPU).clients
    with closing(ClientStateStore.open(RunFolder(tmp_path).clients, index, CPU, 2**20, False)) as clients:
        kept = [clients[key]["personal"] for key in index.keys.tolist()]
    assert kept
    assert all(not torch.equal(own, after["fc.bias"]) for own in kept)


def test_noise_on_batch_norms_statistics_is_refused(people: Population) -> None:
    with pytest.raises(ValueError, match="noise would make BatchNorm's statistics useless: use group or frozen_batch"):
        run(people, private(CentralDP()), model=build_model("resnet18", 3, norm="batch"))


def test_statistics_that_stay_with_clients_are_not_noisy(people: Population) -> None:
    begun = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    before = {name: tensor.clone() for name, tensor in begun.state_dict().items()}
    privacy = CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA)
    after = run(people, private(privacy, personal=NormLayers()), model=begun).model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in ("1.running_mean", "1.running_var", "1.weight"))
    assert not torch.equal(after["3.weight"], before["3.weight"])
    with pytest.raises(ValueError, match="noise would make BatchNorm's statistics useless"):
        run(people, private(privacy, personal=MatchingLayers(("3.*",))), model=begun)


# What is told


def test_what_was_spent_is_in_the_log_the_checkpoint_and_the_privacy_file(people: Population, tmp_path: Path) -> None:
    privacy = CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA, clipping_norm=0.7)
    result = run(people, private(privacy), tmp_path)
    events = read_events(tmp_path / "metrics.jsonl")[1:]
    assert [event["epsilon"] for event in events] == pytest.approx([by_hand(2.0, rounds) for rounds in range(1, 7)])
    assert {event["clip"] for event in events} == {0.7}
    state = load(tmp_path / "checkpoint.safetensors", CPU).state
    assert (state.round, float(state.privacy_state["clip"])) == (6, 0.7)
    told = json.loads((tmp_path / "privacy.json").read_text())
    assert (told["rounds"], told["epsilon"]) == (6, pytest.approx(epsilons(result)[-1]))
    assert "differential privacy (add or remove one user), with 2 users per round" in told["promise"]
    assert "clipped at 0.7" in told["promise"]
    assert "a seed that the operating system drew and nobody kept" in told["promise"]


def test_the_promise_is_about_the_rounds_that_the_budget_allows(people: Population, tmp_path: Path) -> None:
    run(people, private(CentralDP(epsilon=by_hand(4.0, 4) + 1e-3, noise_multiplier=4.0, delta=DELTA)), tmp_path)
    told = json.loads((tmp_path / "privacy.json").read_text())
    assert told["promise"].startswith(f"({by_hand(4.0, 4):.4g}, 0.001)-differential privacy")


def test_what_was_spent_is_in_the_progress_line(people: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Listening:
        def __enter__(self) -> Listening:
            return self

        def __exit__(self, *error: object) -> None: ...

        def advance(self, round: int, loss: float, metric: str, images_per_second: float) -> None:
            lines.append(metric)

    monkeypatch.setattr(playing, "watch", lambda *given: Listening())
    spent = epsilons(run(people, private(CentralDP(epsilon=0, noise_multiplier=2.0, delta=DELTA))))
    assert [line.partition("epsilon ")[2] for line in lines] == [f"{value:.2f}" for value in spent]


def test_an_open_run_says_nothing_of_privacy(people: Population, tmp_path: Path) -> None:
    result = run(people, PLAIN, tmp_path)
    assert not any({"epsilon", "clip"} & event.keys() for event in result.events)
    assert not (tmp_path / "privacy.json").exists()


# The command

FLAIR = (
    *("privacy=flair", "privacy.noise_cohort=20", "algorithm.select=poisson", "algorithm.weigh=equally"),
    *("algorithm=fedadam", "algorithm.server_lr=0.02", "data.task=coarse", "rounds=4"),
)


def test_flairs_settings_run_from_the_command_to_the_privacy_file(
    tmp_path: Path, command: Callable[..., Any], tiny: tuple[str, ...]
) -> None:
    found = command("run", *tiny, *FLAIR, "folder=out")
    assert found.code == 0, found.err
    told = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert told["epsilon"] == pytest.approx(2.0, rel=1e-4)
    assert "The noise is that of 20 users per round, simulated with 4" in told["promise"]
    assert "clipped near the 0.1 quantile of their lengths, from 0.1 on" in told["promise"]
    events = read_events(tmp_path / "out" / "metrics.jsonl")
    assert events[-1]["epsilon"] == told["epsilon"]
    assert "clip: 0.1" in (tmp_path / "out" / "config.yaml").read_text()
    assert "macro_ap" in events[-1]


def test_a_private_run_is_continued_by_the_command(
    tmp_path: Path, command: Callable[..., Any], tiny: tuple[str, ...]
) -> None:
    fixed = (*tiny, *FLAIR, "privacy.noise=4", "privacy.epsilon=0", "privacy.reproducible_noise=true")
    assert command("run", *fixed, "folder=straight", "rounds=6").code == 0
    assert command("run", *fixed, "folder=parts", "rounds=3").code == 0
    found = command("run", "resume=parts", "rounds=6")
    assert found.code == 0, found.err
    straight, parts = (read_events(tmp_path / name / "metrics.jsonl") for name in ("straight", "parts"))
    assert [event.get("epsilon") for event in parts] == [event.get("epsilon") for event in straight]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("privacy=central",), "private sums count every client alike: set weigh to equally"),
        (("privacy=flair", "algorithm.weigh=equally"), "noise_cohort is 5000: there are"),
        (("privacy.name=magic", "algorithm.weigh=equally"), "privacy.name is 'magic': choose none, central or local"),
        (("privacy=central", "algorithm=fedvc", "algorithm.examples=4"), "no account is known for clients drawn as by"),
    ],
)
def test_the_command_refuses_in_one_sentence(
    command: Callable[..., Any], tiny: tuple[str, ...], words: tuple[str, ...], sentence: str
) -> None:
    found = command("run", *tiny, *words, "rounds=2", "folder=out")
    assert found.code == 1
    assert sentence in found.err
    assert found.err.count("\n") == 1
