"""Results: curves, and tables of scores by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.metrics import Accuracy, MultiLabelScores
from manyeyes.training.result import Result, curve
from manyeyes.training.score_tables import per_class_table, per_user_table

CLASSES = ("red", "green", "blue")
EVENTS: list[dict[str, Any]] = [
    {"round": 0, "accuracy": 0.1, "loss": 3.0},
    {"round": 1, "max_client_batches": 4},
    {"round": 2, "max_client_batches": 6, "accuracy": 0.5, "loss": 2.0},
    {"round": 3, "max_client_batches": 5, "accuracy": 0.4, "loss": 1.0},
]


def make_result(score: Accuracy | MultiLabelScores | None = None) -> Result:
    return Result(nn.Identity(), EVENTS, score, None)


def test_a_curve_has_the_evaluated_rounds_and_all_batches() -> None:
    accuracy = make_result().curve()
    assert accuracy.rounds_E.tolist() == [0, 2, 3]
    assert accuracy.values_E.tolist() == [0.1, 0.5, 0.4]
    assert accuracy.cumulative_batches_R.tolist() == [0, 4, 10, 15]


def test_a_curve_can_be_of_another_metric() -> None:
    assert make_result().curve("loss").values_E.tolist() == [3.0, 2.0, 1.0]


def test_the_headline_of_personalized_models_comes_first() -> None:
    shared = Accuracy.from_predictions([0, 0], [0, 1], 2, [0.5, 1.5])
    personalized = Accuracy.from_predictions([0, 1], [0, 1], 2, [0.25, 0.25])
    result = Result(nn.Identity(), [], shared, None, personalized)
    assert result.metric == "personalized_accuracy"
    assert [*result.final][1] == "personalized_accuracy"
    assert (result.final["personalized_accuracy"], result.final["accuracy"]) == (1.0, 0.5)
    assert result.describe() == (
        "personalized models: accuracy 1.0000, loss 0.2500, macro_accuracy 1.0000; "
        "shared model: accuracy 0.5000, loss 1.0000, macro_accuracy 0.5000"
    )
    assert make_result(shared).describe() == "accuracy 0.5000, loss 1.0000, macro_accuracy 0.5000"


def test_a_metric_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="no values of 'macro_ap'"):
        curve(EVENTS, "macro_ap")


def test_without_evaluation_there_are_no_final_metrics() -> None:
    assert make_result().final == {}


def test_single_label_tables_by_hand() -> None:
    # ann has red, red, blue and red is predicted for all; bob has green, blue, blue and only the first is wrong.
    labels = SingleLabels(np.array([0, 0, 2, 1, 2, 2]), CLASSES)
    population = Population.from_arrays(np.zeros((6, 8, 8, 3), np.uint8), labels, ["ann"] * 3 + ["bob"] * 3)
    score = Accuracy.from_predictions([0, 0, 0, 2, 2, 2], labels.ids, 3, np.zeros(6), [0, 0, 0, 1, 1, 1])
    per_class = "class,examples,accuracy\nred,2,1.0\ngreen,1,0.0\nblue,3,0.6666666666666666\n"
    assert per_class_table(score, population) == per_class
    per_user = "user,examples,accuracy\nann,3,0.6666666666666666\nbob,3,0.6666666666666666\n"
    assert per_user_table(score, population) == per_user
    per_user = (
        "user,examples,personalized_accuracy,accuracy\nann,3,0.0,0.6666666666666666\nbob,3,1.0,0.6666666666666666\n"
    )
    personalized = Accuracy.from_predictions([1, 1, 1, 1, 2, 2], labels.ids, 3, np.zeros(6), [0, 0, 0, 1, 1, 1])
    assert per_user_table(score, population, personalized) == per_user
    per_class = "class,examples,personalized_accuracy,accuracy\nred,2,0.0,1.0\ngreen,1,1.0,0.0\n"
    assert (
        per_class_table(score, population, personalized) == f"{per_class}blue,3,0.6666666666666666,0.6666666666666666\n"
    )


def test_multi_label_tables_by_hand() -> None:
    # Both of ann's images are red and one is green; red is scored right, and for green the wrong image comes first.
    labels = MultiLabels.from_lists([[0], [0, 1]], CLASSES)
    population = Population.from_arrays(np.zeros((2, 8, 8, 3), np.uint8), labels, ["ann", "ann"])
    scores = torch.tensor([[2.0, 1.0, -1.0], [1.0, -1.0, -1.0]])
    score = MultiLabelScores.from_scores(scores, torch.from_numpy(labels.targets(np.arange(2))), np.array([0, 0]))
    header, red, green, blue = per_class_table(score, population).splitlines()
    assert header == "class,examples,ap,precision,recall,f1,ap_200"
    assert red == "red,2,1.0,1.0,1.0,1.0,1.0"
    assert green == "green,1,0.5,0.0,0.0,0.0,0.5"
    assert blue.startswith("blue,0,")
    assert per_user_table(score, population).startswith("user,examples,ap\nann,2,")
    assert make_result(score).metric == "macro_ap"


def test_names_with_commas_are_quoted() -> None:
    labels = SingleLabels(np.array([0]), ("red, dark",))
    population = Population.from_arrays(np.zeros((1, 8, 8, 3), np.uint8), labels, ["ann, b"])
    score = Accuracy.from_predictions([0], [0], 1, [0.0], [0])
    assert per_class_table(score, population).splitlines()[1] == '"red, dark",1,1.0'
    assert per_user_table(score, population).splitlines()[1] == '"ann, b",1,1.0'
