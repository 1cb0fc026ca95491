"""When a run ends, how often it is evaluated before, and which of its models is tested and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import binary_cross_entropy_with_logits

from manyeyes.algorithms import fedavg
from manyeyes.core.population import Population
from manyeyes.metrics import MultiLabelScores
from manyeyes.training.config import RunConfig, split_options
from manyeyes.training.result import Result
from tests.training import small_runs

ROUNDS = 6


def run(population: Population, folder: Path | None = None, lr: float = 0.5, **settings: Any) -> Result:
    algorithm = fedavg(cohort_size=3, batch_size=4, lr=lr)
    return small_runs.run(population, algorithm, folder, **{"rounds": ROUNDS, "evaluate_every": 1, **settings})


def test_a_budget_of_batches_ends_a_run_in_the_round_that_spends_it(population: Population) -> None:
    """Everyone has six images: two batches of four per round, so that five are spent in round 3."""
    events = run(population, max_local_batches=5).events
    assert [event["round"] for event in events] == [0, 1, 2, 3]
    assert "accuracy" in events[-1]


def test_a_budget_that_is_not_spent_does_not_end_a_run(population: Population) -> None:
    assert run(population, max_local_batches=1000).events[-1]["round"] == ROUNDS


def test_a_budget_includes_what_was_spent_before_a_resume(tmp_path: Path, population: Population) -> None:
    run(population, tmp_path, rounds=2)
    (tmp_path / "model.safetensors").unlink()
    assert run(population, tmp_path, max_local_batches=5, resume=True).events[-1]["round"] == 3


def test_evaluations_are_frequent_at_first_and_never_rarer_than_set() -> None:
    """A tenth of the completed rounds, rounded down to a power of two: every round to 20, every second to 40."""
    config = RunConfig(evaluate_every=10, evaluate_every_fraction=0.1)
    evaluated = [round for round in range(1, 121) if config.evaluates_after(round)]
    assert evaluated == [*range(1, 20), *range(20, 40, 2), *range(40, 80, 4), *range(80, 120, 8), 120]
    assert [r for r in range(1, 31) if RunConfig(evaluate_every=10).evaluates_after(r)] == [10, 20, 30]
    assert not any(RunConfig(evaluate_every=0, evaluate_every_fraction=0.1).evaluates_after(r) for r in range(1, 31))


def test_an_unknown_option_of_train_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(
        ValueError, match=r"Unknown option 'round' of train \(did you mean 'rounds'\?\): it has rounds,"
    ):
        split_options({"round": 3})


def test_the_model_of_the_lowest_validation_loss_is_tested_and_kept(tmp_path: Path, population: Population) -> None:
    losses = [event["loss"] for event in run(population, lr=2.0, eval_split="val").events]
    lowest = losses.index(min(losses))
    assert 0 < lowest < ROUNDS, "the test needs a learning rate with which the loss rises again"
    expected = run(population, lr=2.0, rounds=lowest)

    selected = run(population, tmp_path, lr=2.0, select_best_on="val")

    assert [event["selection_loss"] for event in selected.events] == pytest.approx(losses)
    assert selected.events[-1]["best_round"] == lowest
    assert selected.events[-1]["loss"] == expected.events[-1]["loss"]
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, expected.model.state_dict()[name])


def test_a_resumed_run_has_its_best_model(tmp_path: Path, population: Population) -> None:
    uninterrupted = run(population, tmp_path / "uninterrupted", lr=2.0, select_best_on="val")
    run(population, tmp_path / "resumed", lr=2.0, select_best_on="val", rounds=ROUNDS - 1)
    resumed = run(population, tmp_path / "resumed", lr=2.0, select_best_on="val", resume=True)
    assert resumed.events[-1]["best_round"] == uninterrupted.events[-1]["best_round"]
    assert resumed.final == uninterrupted.final
    for name, tensor in resumed.model.state_dict().items():
        assert torch.equal(tensor, uninterrupted.model.state_dict()[name])


def test_the_multi_label_loss_is_the_mean_binary_cross_entropy() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 40.0, 0.0]])
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    expected = float(binary_cross_entropy_with_logits(logits, targets))
    halves = (MultiLabelScores.from_scores(logits[i : i + 1], targets[i : i + 1]) for i in range(2))
    assert sum(halves, MultiLabelScores.empty(3)).mean_loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("split", "message"),
    [("test", "select_best_on is 'test': set it to a split of the data other than the evaluated one"), ("dev", "dev")],
)
def test_the_selection_split_must_exist_and_not_be_the_evaluated_one(
    population: Population, split: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(population, select_best_on=split)
