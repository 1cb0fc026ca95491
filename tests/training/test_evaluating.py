"""What is evaluated in a run, and when, and which tables are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from manyeyes.algorithms import fedavg
from manyeyes.core.population import MultiLabels, Population
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import build_model
from tests.training.small_runs import run

FEDAVG = fedavg(cohort_size=3)


@pytest.mark.parametrize(
    ("every", "rounds"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (5, [0, 5]), (0, [0, 5]), (9, [0, 5])]
)
def test_evaluation_comes_first_last_and_at_the_interval(population: Population, every: int, rounds: list[int]) -> None:
    events = run(population, FEDAVG, rounds=5, evaluate_every=every).events
    assert [event["round"] for event in events] == [0, 1, 2, 3, 4, 5]
    assert [event["round"] for event in events if "accuracy" in event] == rounds


def test_round_0_is_the_untrained_model(population: Population) -> None:
    model = build_model("linear", 3, size=8, seed=5)
    first = run(population, FEDAVG, model=model, rounds=1).events[0]
    test = population.split("test")
    with torch.no_grad():
        logits = model(Preprocess().evaluate(torch.from_numpy(test.pixels(np.arange(6)))))
    targets = torch.from_numpy(test.labels.targets(np.arange(6)))
    assert first["accuracy"] == int((logits.argmax(1) == targets).sum()) / 6
    assert first["loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), rel=1e-6)
    assert "train_loss" not in first


def test_an_event_has_the_cost_of_its_round(population: Population) -> None:
    event = run(population, fedavg(cohort_size=3, epochs=2, batch_size=4), rounds=1).events[1]
    assert (event["num_clients"], event["num_images"], event["max_client_batches"]) == (3, 3 * 2 * 6, 2 * 2)


def test_the_tables_are_those_of_the_final_model(tmp_path: Path, population: Population) -> None:
    model = run(population, FEDAVG, tmp_path).model.eval()
    test = population.split("test")
    with torch.no_grad():
        logits = model(Preprocess().evaluate(torch.from_numpy(test.pixels(np.arange(6)))))
    is_correct = logits.argmax(1).numpy() == test.labels.targets(np.arange(6))
    lines = ["class,examples,accuracy"]
    for class_id, name in enumerate(test.classes):
        correct = is_correct[test.labels.targets(np.arange(6)) == class_id]
        lines.append(f"{name},{len(correct)},{float(correct.mean()) if len(correct) else 0.0}")
    assert (tmp_path / "per_class.csv").read_text().splitlines() == lines
    assert (tmp_path / "per_user.csv").read_text() == f"user,examples,accuracy\n7,6,{float(is_correct.mean())}\n"


def test_another_split_can_be_evaluated(tmp_path: Path, population: Population) -> None:
    run(population, FEDAVG, tmp_path, eval_split="val")
    assert (tmp_path / "per_user.csv").read_text().splitlines()[1].startswith("6,6,")


def test_an_unknown_split_is_refused(population: Population) -> None:
    with pytest.raises(ValueError, match=r"dev.*test, train, val"):
        run(population, FEDAVG, eval_split="dev")


def test_a_test_population_takes_the_place_of_the_splits(tmp_path: Path, population: Population) -> None:
    algorithm = fedavg(cohort_size=8, batch_size=6)
    result = run(population, algorithm, tmp_path, test=population.split("val"), rounds=1)
    assert result.events[1]["num_images"] == 48
    assert (tmp_path / "per_user.csv").read_text().splitlines()[1].startswith("6,6,")


def test_without_splits_nothing_is_evaluated(tmp_path: Path, population: Population) -> None:
    result = run(replace(population, columns={}), fedavg(cohort_size=8), tmp_path)
    assert (result.score, result.final) == (None, {})
    assert not (tmp_path / "per_class.csv").exists()


def test_multi_label_data_is_scored_by_average_precision(population: Population) -> None:
    labels = MultiLabels.from_lists([sorted({i % 3, (i // 3) % 3}) for i in range(48)], ("a", "b", "c"))
    result = run(replace(population, labels=labels), FEDAVG)
    assert result.metric == "macro_ap"
    assert result.curve().rounds_E.tolist() == [0, 2, 4]
