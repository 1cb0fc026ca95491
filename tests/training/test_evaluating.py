"""What of a run is evaluated, when, and what is written of it."""

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


@pytest.mark.parametrize(
    ("every", "rounds"), [(1, [0, 1, 2, 3, 4, 5]), (2, [0, 2, 4, 5]), (5, [0, 5]), (0, [0, 5]), (9, [0, 5])]
)
def test_evaluation_comes_first_last_and_every_so_many_rounds(
    people: Population, every: int, rounds: list[int]
) -> None:
    events = run(people, fedavg(cohort_size=3), rounds=5, evaluate_every=every).events
    assert [event["round"] for event in events] == [0, 1, 2, 3, 4, 5]
    assert [event["round"] for event in events if "accuracy" in event] == rounds


def test_round_0_is_the_untrained_model(people: Population) -> None:
    model = build_model("linear", 3, size=8, seed=5)
    first = run(people, fedavg(cohort_size=3), model=model, rounds=1).events[0]
    test = people.split("test")
    with torch.no_grad():
        logits = model(Preprocess().evaluate(torch.from_numpy(test.pixels(np.arange(6)))))
    targets = torch.from_numpy(test.labels.targets(np.arange(6)))
    assert first["accuracy"] == int((logits.argmax(1) == targets).sum()) / 6
    assert first["loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), rel=1e-6)
    assert "train_loss" not in first


def test_a_round_says_what_it_cost(people: Population) -> None:
    event = run(people, fedavg(cohort_size=3, epochs=2, batch_size=4), rounds=1).events[1]
    assert (event["clients"], event["images"], event["batches"]) == (3, 3 * 2 * 6, 2 * 2)


def test_the_tables_are_those_of_the_final_model(tmp_path: Path, people: Population) -> None:
    model = run(people, fedavg(cohort_size=3), tmp_path).model.eval()
    test = people.split("test")
    with torch.no_grad():
        guessed = model(Preprocess().evaluate(torch.from_numpy(test.pixels(np.arange(6))))).argmax(1).tolist()
    pairs = list(zip(test.labels.targets(np.arange(6)).tolist(), guessed, strict=True))
    lines = ["class,examples,accuracy"]
    for number, name in enumerate(test.classes):
        right = [guess == true for true, guess in pairs if true == number]
        lines.append(f"{name},{len(right)},{sum(right) / len(right) if right else 0.0}")
    assert (tmp_path / "per_class.csv").read_text().splitlines() == lines
    share = sum(guess == true for true, guess in pairs) / 6
    assert (tmp_path / "per_user.csv").read_text() == f"user,examples,accuracy\n7,6,{share}\n"


def test_val_is_evaluated_when_asked_for(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort_size=3), tmp_path, evaluate_on="val")
    assert (tmp_path / "per_user.csv").read_text().splitlines()[1].startswith("6,6,")


def test_a_split_that_is_not_there_is_refused(people: Population) -> None:
    with pytest.raises(ValueError, match=r"has no dev split; it has test, train, val$"):
        run(people, fedavg(cohort_size=3), evaluate_on="dev")


def test_a_test_population_takes_the_place_of_the_splits(tmp_path: Path, people: Population) -> None:
    result = run(people, fedavg(cohort_size=8, batch_size=6), tmp_path, test=people.split("val"), rounds=1)
    assert result.events[1]["images"] == 48
    assert (tmp_path / "per_user.csv").read_text().splitlines()[1].startswith("6,6,")


def test_without_splits_nothing_is_evaluated(tmp_path: Path, people: Population) -> None:
    result = run(replace(people, columns={}), fedavg(cohort_size=8), tmp_path)
    assert (result.score, result.final) == (None, {})
    assert not (tmp_path / "per_class.csv").exists()


def test_several_labels_are_scored_by_average_precision(people: Population) -> None:
    labels = MultiLabels.from_lists(
        [[i % 3, (i // 3) % 3] if i % 3 != (i // 3) % 3 else [i % 3] for i in range(48)], ("a", "b", "c")
    )
    result = run(replace(people, labels=labels), fedavg(cohort_size=3))
    assert result.metric == "macro_ap"
    assert result.curve().rounds_E.tolist() == [0, 2, 4]
