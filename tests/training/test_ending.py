"""When a run ends, how often it is evaluated on the way, and which of its models is tested and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import binary_cross_entropy_with_logits

from manyeyes.algorithms import fedavg
from manyeyes.core.population import Population
from manyeyes.core.state import DivergenceError
from manyeyes.metrics import MultiLabelScores
from manyeyes.training.builtin_callbacks import loss
from manyeyes.training.config import RunConfig
from manyeyes.training.result import Result
from manyeyes.training.train import train

ROUNDS = 6


def run(people: Population, folder: Path | None = None, lr: float = 0.5, **settings: Any) -> Result:
    settings = {"rounds": ROUNDS, "evaluate_every": 1, "checkpoint_seconds": 0, "progress": False, **settings}
    return train(people, "linear", fedavg(cohort_size=3, batch_size=4, lr=lr), folder=folder, **settings)


def test_a_budget_of_batches_ends_a_run_in_the_round_that_spends_it(people: Population) -> None:
    """Everyone has six photos: two batches of four a round, so that five are spent in round 3."""
    events = run(people, batches=5).events
    assert [event["round"] for event in events] == [0, 1, 2, 3]
    assert "accuracy" in events[-1]


def test_a_budget_that_is_not_spent_ends_nothing(people: Population) -> None:
    assert run(people, batches=1000).events[-1]["round"] == ROUNDS


def test_a_budget_counts_what_was_spent_before_a_run_went_on(tmp_path: Path, people: Population) -> None:
    run(people, tmp_path, rounds=2)
    (tmp_path / "model.safetensors").unlink()
    assert run(people, tmp_path, batches=5, resume=True).events[-1]["round"] == 3


def test_evaluations_are_dense_early_and_never_rarer_than_asked() -> None:
    """A tenth of the rounds played, rounded down to a power of two: every round before 20, every second before 40."""
    how = RunConfig(evaluate_every=10, evaluate_every_fraction=0.1)
    found = [round for round in range(1, 121) if how.evaluates_after(round)]
    assert found == [*range(1, 20), *range(20, 40, 2), *range(40, 80, 4), *range(80, 120, 8), 120]
    assert [r for r in range(1, 31) if RunConfig(evaluate_every=10).evaluates_after(r)] == [10, 20, 30]
    assert not any(RunConfig(evaluate_every=0, evaluate_every_fraction=0.1).evaluates_after(r) for r in range(1, 31))


def test_the_model_of_the_lowest_validation_loss_is_tested_and_kept(tmp_path: Path, people: Population) -> None:
    every = run(people, lr=2.0, evaluate_on="val").events
    losses = [event["loss"] for event in every]
    lowest = losses.index(min(losses))
    assert 0 < lowest < ROUNDS, "the rate is one with which the loss goes up again"
    expected = run(people, lr=2.0, rounds=lowest)

    found = run(people, tmp_path, lr=2.0, best_on="val")

    assert [event["best_on_loss"] for event in found.events] == pytest.approx(losses)
    assert found.events[-1]["best_round"] == lowest
    assert found.events[-1]["loss"] == expected.events[-1]["loss"]
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, expected.model.state_dict()[name])


def test_a_run_that_goes_on_knows_its_best_model(tmp_path: Path, people: Population) -> None:
    whole = run(people, tmp_path / "whole", lr=2.0, best_on="val")
    run(people, tmp_path / "part", lr=2.0, best_on="val", rounds=ROUNDS - 1)
    found = run(people, tmp_path / "part", lr=2.0, best_on="val", resume=True)
    assert found.events[-1]["best_round"] == whole.events[-1]["best_round"]
    assert found.final == whole.final
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(tensor, whole.model.state_dict()[name])
    assert len(list((tmp_path / "part").glob("best-*"))) == 1


def test_the_loss_of_several_labels_is_the_mean_binary_cross_entropy() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 40.0, 0.0]])
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    expected = float(binary_cross_entropy_with_logits(logits, targets))
    halves = (MultiLabelScores.from_scores(logits[i : i + 1], targets[i : i + 1]) for i in range(2))
    assert loss(sum(halves, MultiLabelScores.empty(3))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("split", ["test", "nothing"])
def test_the_split_that_chooses_is_there_and_is_not_the_one_evaluated(people: Population, split: str) -> None:
    with pytest.raises(ValueError, match=f"{split}"):
        run(people, best_on=split)


def test_a_run_that_diverged_says_so_in_its_folder(tmp_path: Path, people: Population) -> None:
    with pytest.raises(DivergenceError):
        train(
            people, "linear", fedavg(cohort_size=3, batch_size=2, lr=1e3, weight_decay=1.0), folder=tmp_path, rounds=50
        )
    assert "has diverged" in (tmp_path / "diverged.txt").read_text()
