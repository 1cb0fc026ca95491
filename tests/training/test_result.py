"""Results: curves and tables, against a hand computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.metrics import Accuracy, MultiLabelScores
from manyeyes.training.result import Result, curve, headline, write_tables

CLASSES = ("red", "green", "blue")
EVENTS = [
    {"round": 0, "accuracy": 0.1, "loss": 3.0},
    {"round": 1, "batches": 4},
    {"round": 2, "batches": 6, "accuracy": 0.5, "loss": 2.0},
    {"round": 3, "batches": 5, "accuracy": 0.4, "loss": 1.0},
]


def result(score: Accuracy | MultiLabelScores | None = None) -> Result:
    return Result(nn.Identity(), EVENTS, score, None)


def test_the_curve_has_the_evaluated_rounds_and_all_batches() -> None:
    found = result().curve()
    assert found.rounds_E.tolist() == [0, 2, 3]
    assert found.values_E.tolist() == [0.1, 0.5, 0.4]
    assert found.cumulative_batches_R.tolist() == [0, 4, 10, 15]


def test_a_curve_can_be_of_another_metric() -> None:
    assert result().curve("loss").values_E.tolist() == [3.0, 2.0, 1.0]


def test_a_metric_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no values of 'macro_ap'"):
        curve(EVENTS, "macro_ap")


def test_without_evaluation_there_is_no_score() -> None:
    assert (result().final, headline(None)) == ({}, "")


def test_single_label_tables_by_hand(tmp_path: Path) -> None:
    # ann holds red, red, blue and red is guessed for all; bob holds green, blue, blue and is right but for the first
    classes = SingleLabels(np.array([0, 0, 2, 1, 2, 2]), CLASSES)
    people = Population.from_arrays(np.zeros((6, 8, 8, 3), np.uint8), classes, ["ann"] * 3 + ["bob"] * 3)
    score = Accuracy.from_predictions([0, 0, 0, 2, 2, 2], classes.ids, 3, np.zeros(6), [0, 0, 0, 1, 1, 1])
    write_tables(tmp_path, score, people)
    per_class = "class,examples,accuracy\nred,2,1.0\ngreen,1,0.0\nblue,3,0.6666666666666666\n"
    assert (tmp_path / "per_class.csv").read_text() == per_class
    per_user = "user,examples,accuracy\nann,3,0.6666666666666666\nbob,3,0.6666666666666666\n"
    assert (tmp_path / "per_user.csv").read_text() == per_user


def test_multi_label_tables_by_hand(tmp_path: Path) -> None:
    # Both of ann's photos are red and one is green; red is scored right, and for green the wrong photo comes first
    classes = MultiLabels.from_lists([[0], [0, 1]], CLASSES)
    people = Population.from_arrays(np.zeros((2, 8, 8, 3), np.uint8), classes, ["ann", "ann"])
    scores = torch.tensor([[2.0, 1.0, -1.0], [1.0, -1.0, -1.0]])
    score = MultiLabelScores.from_scores(scores, torch.from_numpy(classes.targets(np.arange(2))), np.array([0, 0]))
    write_tables(tmp_path, score, people)
    head, red, green, blue = (tmp_path / "per_class.csv").read_text().splitlines()
    assert head == "class,examples,ap,precision,recall,f1"
    assert red == "red,2,1.0,1.0,1.0,1.0"
    assert green == "green,1,0.5,0.0,0.0,0.0"
    assert blue.startswith("blue,0,")
    assert (tmp_path / "per_user.csv").read_text().startswith("user,examples,ap\nann,2,")
    assert result(score).metric == "macro_ap"


def test_names_with_commas_are_quoted(tmp_path: Path) -> None:
    classes = SingleLabels(np.array([0]), ("red, dark",))
    people = Population.from_arrays(np.zeros((1, 8, 8, 3), np.uint8), classes, ["ann, b"])
    write_tables(tmp_path, Accuracy.from_predictions([0], [0], 1, [0.0], [0]), people)
    assert (tmp_path / "per_class.csv").read_text().splitlines()[1] == '"red, dark",1,1.0'
    assert (tmp_path / "per_user.csv").read_text().splitlines()[1] == '"ann, b",1,1.0'
