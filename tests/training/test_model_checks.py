"""A model that does not fit the data, and data of other types, are refused or converted before round 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.training.result import Result
from manyeyes.training.train import train
from tests.training.small_runs import same

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (24, 8, 8, 3)).astype(np.uint8)
IDS, USERS, CLASSES = np.arange(24) % 3, np.arange(24) // 6, ("red", "green", "blue")


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.fc(x.flatten(1)), "features": x}


def linear(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, outputs))


def begun(outputs: int) -> nn.Module:
    """A linear model that always begins with the same weights."""
    model = linear(outputs)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.01)
    return model


def run(people: Population, model: nn.Module, **settings: Any) -> Result:
    return train(
        people, model, fedavg(cohort_size=2, batch_size=4, lr=0.1), rounds=2, progress=False, device="cpu", **settings
    )


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (linear(4), "the model has 4 outputs and the data has 3 classes: give its last layer 3 outputs"),
        (linear(2), "the model has 2 outputs and the data has 3 classes"),
        (Doubled(), r"the model returns a dict of 2 in training mode: return one floating-point Tensor .*\[N, 3\]"),
        (nn.Sequential(nn.Conv2d(1, 2, 8), nn.Flatten(), nn.Linear(2, 3)), "expects 1 input channel and the images ha"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), "its layer is lazy: call the module once on a batch"),
    ],
)
@pytest.mark.parametrize("tested", [False, True])
def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, model: nn.Module, sentence: str, tested: bool
) -> None:
    people = Population.from_arrays(PIXELS, SingleLabels(IDS, CLASSES), USERS)
    with pytest.raises(ValueError, match=sentence):
        run(people, model, test=people if tested else None, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_labels_need_one_output_for_each_class() -> None:
    people = Population.from_arrays(PIXELS, MultiLabels.from_lists([[i] for i in IDS], CLASSES), USERS)
    with pytest.raises(ValueError, match="the model has 4 outputs and the data has 3 classes"):
        run(people, linear(4))
    assert run(people, linear(3)).events[-1]["round"] == 2


def test_a_lazy_module_trains_after_it_was_called_once() -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, 3, 8, 8))
    people = Population.from_arrays(PIXELS, SingleLabels(IDS, CLASSES), USERS)
    assert run(people, model).events[-1]["round"] == 2


@pytest.mark.parametrize("kind", [list, np.int32, np.uint8, np.uint16])
def test_labels_of_any_whole_numbers_train_the_same_model(kind: Any) -> None:
    labels = SingleLabels(IDS.tolist() if kind is list else IDS.astype(kind), CLASSES)
    assert labels.ids.dtype == np.int64
    models = [
        run(Population.from_arrays(PIXELS, one, USERS), begun(3)).model.state_dict()
        for one in (labels, SingleLabels(IDS, CLASSES))
    ]
    assert same(*models)


def test_users_and_splits_may_be_lists() -> None:
    split = ["train", "test"] * 12
    lists = Population.from_arrays(PIXELS, SingleLabels(IDS.tolist(), CLASSES), USERS.tolist(), split=split)
    arrays = Population.from_arrays(PIXELS, SingleLabels(IDS, CLASSES), USERS, split=np.array(split))
    assert same(run(lists, begun(3)).model.state_dict(), run(arrays, begun(3)).model.state_dict())
