"""A model that does not fit the data is refused before round 1, and labels of other types are converted."""

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
from tests.training.small_runs import equal_tensors

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (24, 8, 8, 3)).astype(np.uint8)
IDS, USERS, CLASSES = np.arange(24) % 3, np.arange(24) // 6, ("red", "green", "blue")


class DictModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 3)

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.fc(x.flatten(1)), "features": x}


def linear(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, outputs))


def constant_linear(outputs: int) -> nn.Module:
    """Return a linear model whose initial weights are always the same."""
    model = linear(outputs)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.01)
    return model


def run(population: Population, model: nn.Module, **settings: Any) -> Result:
    return train(
        population,
        model,
        fedavg(cohort_size=2, batch_size=4, lr=0.1),
        rounds=2,
        progress=False,
        device="cpu",
        **settings,
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (linear(4), "the model has 4 outputs and the data has 3 classes: give its last layer 3 outputs"),
        (linear(2), "the model has 2 outputs and the data has 3 classes"),
        (DictModel(), r"the model returns a dict of 2 in training mode: return one floating-point Tensor .*\[N, 3\]"),
        (nn.Sequential(nn.Conv2d(1, 2, 8), nn.Flatten(), nn.Linear(2, 3)), "expects 1 input channel and the images ha"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), "its layer is lazy: call the module once on a batch"),
    ],
)
@pytest.mark.parametrize("has_test", [False, True])
def test_a_model_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, model: nn.Module, message: str, has_test: bool
) -> None:
    population = Population.from_arrays(PIXELS, SingleLabels(IDS, CLASSES), USERS)
    with pytest.raises(ValueError, match=message):
        run(population, model, test=population if has_test else None, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_multi_label_models_need_one_output_for_each_class() -> None:
    population = Population.from_arrays(PIXELS, MultiLabels.from_lists([[i] for i in IDS], CLASSES), USERS)
    with pytest.raises(ValueError, match="the model has 4 outputs and the data has 3 classes"):
        run(population, linear(4))
    assert run(population, linear(3)).events[-1]["round"] == 2


def test_a_lazy_module_can_be_trained_after_it_was_called_once() -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, 3, 8, 8))
    population = Population.from_arrays(PIXELS, SingleLabels(IDS, CLASSES), USERS)
    assert run(population, model).events[-1]["round"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [list, np.int32, np.uint8, np.uint16])
def test_labels_of_any_integer_type_train_the_same_model(dtype: Any) -> None:
    ids: Any = IDS.tolist() if dtype is list else IDS.astype(dtype)
    converted = SingleLabels(ids, CLASSES)
    assert converted.ids.dtype == np.int64
    models = [
        run(Population.from_arrays(PIXELS, labels, USERS), constant_linear(3)).model.state_dict()
        for labels in (converted, SingleLabels(IDS, CLASSES))
    ]
    assert equal_tensors(*models)


@pytest.mark.slow
def test_users_and_splits_may_be_lists() -> None:
    split = ["train", "test"] * 12
    id_list: Any = IDS.tolist()
    lists = Population.from_arrays(PIXELS, SingleLabels(id_list, CLASSES), USERS.tolist(), split=split)
    arrays = Population.from_arrays(PIXELS, SingleLabels(IDS, CLASSES), USERS, split=np.array(split))
    assert equal_tensors(
        run(lists, constant_linear(3)).model.state_dict(), run(arrays, constant_linear(3)).model.state_dict()
    )
