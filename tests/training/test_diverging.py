"""Numbers that are not finite: one client's are left out and named, everybody's end the run in a sentence."""

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
from manyeyes.training.run_folder import read_events
from tests.training.small_runs import run

GROWING = fedavg(cohort_size=3, batch_size=2, lr=1e3, weight_decay=1.0)  # a step multiplies the weights by 1 - 1000


def spoil_user(monkeypatch: pytest.MonkeyPatch, user: int) -> None:
    honest = ReferenceEngine._client

    def client(self: ReferenceEngine, weights: Tensor, client: ClientPlan, *rest: Any) -> Any:
        update, *others = honest(self, weights, client, *rest)
        return update * float("nan") if client.client_id == user else update, *others

    monkeypatch.setattr(ReferenceEngine, "_client", client)


def test_a_client_whose_update_is_not_finite_is_left_out_counted_and_named(
    tmp_path: Path, people: Population, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil_user(monkeypatch, 4)
    names = np.array(["ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal"])
    run(replace(people, names=names), fedavg(cohort_size=6), tmp_path, rounds=2)
    assert [event.get("left_out") for event in read_events(tmp_path / "metrics.jsonl")] == [None, ["eve"], ["eve"]]
    lines = [f"round {round}: the update of user eve was not finite and is left out\n" for round in (1, 2)]
    assert capsys.readouterr().err == "".join(lines)


def test_who_is_left_out_does_not_change_the_others(people: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    without = people.filter(people.owners(np.arange(48)) != 4)
    expected = run(without, fedavg(cohort_size=5, batch_size=6), rounds=1).model.state_dict()
    spoil_user(monkeypatch, 4)
    found = run(people, fedavg(cohort_size=6, batch_size=6), rounds=1).model.state_dict()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name])


def test_a_run_that_diverges_stops_with_a_sentence_and_keeps_its_last_good_state(
    tmp_path: Path, people: Population
) -> None:
    with pytest.raises(
        DivergenceError,
        match=r"has diverged \(its last good checkpoint is in .*\).*: try a lower learning rate, or clip",
    ):
        run(people, GROWING, tmp_path, rounds=50, evaluate_every=0, checkpoint_seconds=1000)
    kept = checkpoint.load(tmp_path / "checkpoint.safetensors", torch.device("cpu")).state
    assert kept.round == read_events(tmp_path / "metrics.jsonl")[-1]["round"] > 0
    assert torch.isfinite(kept.weights).all()


def test_without_a_folder_divergence_names_none(people: Population) -> None:
    with pytest.raises(DivergenceError, match=r"finite(?: update)?: try a lower learning rate, or clip gradients$"):
        run(people, GROWING, rounds=50, evaluate_every=0)
