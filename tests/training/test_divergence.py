"""Numbers that are not finite: one client's update is rejected and named, a diverged model ends the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyeyes.algorithms import fedavg
from manyeyes.core.plan import ClientPlan
from manyeyes.core.population import Population
from manyeyes.core.state import DivergenceError
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.training import checkpoint
from manyeyes.training.run_files import read_status
from manyeyes.training.run_folder import read_events
from tests.training.small_runs import run

DIVERGING = fedavg(cohort_size=3, batch_size=2, lr=1e3, weight_decay=1.0)  # a step multiplies the weights by 1 - 1000
NAMES = np.array(["ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal"])


def spoil_updates(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    """Make every update of a user NaN."""
    train_locally = ReferenceEngine._train_locally

    def train_spoiled(self: ReferenceEngine, weights: Tensor, client: ClientPlan, *args: Any) -> Any:
        update_W, *rest = train_locally(self, weights, client, *args)
        return (update_W * float("nan") if client.client_id == user else update_W, *rest)

    monkeypatch.setattr(ReferenceEngine, "_train_locally", train_spoiled)


def test_an_update_that_is_not_finite_is_rejected_and_named(
    tmp_path: Path, population: Population, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil_updates(monkeypatch, 4)
    named = replace(population, user_names=NAMES)
    run(named, fedavg(cohort_size=6), tmp_path, rounds=2, engine="reference")
    rejected = [event.get("rejected_clients") for event in read_events(tmp_path / "metrics.jsonl")]
    assert rejected == [None, ["eve"], ["eve"]]
    lines = [f"round {round}: the update of user eve was not finite and is rejected\n" for round in (1, 2)]
    assert capsys.readouterr().err == "".join(lines)


def test_a_rejected_update_does_not_change_the_others(population: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    without = population.filter(population.owners(np.arange(48)) != 4)
    expected = run(without, fedavg(cohort_size=5, batch_size=6), rounds=1, engine="reference").model.state_dict()
    spoil_updates(monkeypatch, 4)
    weights = run(population, fedavg(cohort_size=6, batch_size=6), rounds=1, engine="reference").model.state_dict()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name])


def test_a_run_that_diverges_ends_with_a_message_and_keeps_its_last_good_state(
    tmp_path: Path, population: Population
) -> None:
    message = r"has diverged \(its last good checkpoint is in .*\).*: choose a lower lr of the algorithm"
    with pytest.raises(DivergenceError, match=message) as caught:
        run(population, DIVERGING, tmp_path, rounds=50, evaluate_every=0, checkpoint_seconds=1000)
    saved = checkpoint.load(tmp_path / "checkpoint.safetensors", torch.device("cpu")).state
    assert saved.round == read_events(tmp_path / "metrics.jsonl")[-1]["round"] > 0
    assert torch.isfinite(saved.weights).all()
    assert read_status(tmp_path) == ("diverged", str(caught.value))
    assert not (tmp_path / "failed.txt").exists()


def test_without_a_folder_the_message_names_none(population: Population) -> None:
    with pytest.raises(
        DivergenceError,
        match=r"finite(?: update)?: choose a lower lr of the algorithm \(algorithm\.lr\), or set its max_grad_norm$",
    ):
        run(population, DIVERGING, rounds=50, evaluate_every=0)
