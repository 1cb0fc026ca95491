"""What `train` does not change, what it writes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from manyeyes.algorithms import centralized, fedavg, local_only
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import FrozenBatchNorm2d, build_model
from tests.training.small_runs import run


def test_the_module_that_is_passed_is_not_changed(population: Population) -> None:
    model = build_model("linear", 3, size=8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = run(population, fedavg(cohort_size=3), model=model).model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(trained.state_dict()["fc.weight"], before["fc.weight"])


def test_the_saved_model_is_the_one_returned(tmp_path: Path, population: Population) -> None:
    model = run(population, fedavg(cohort_size=3), tmp_path).model.state_dict()
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == model.keys()
    assert all(torch.equal(saved[name], model[name]) for name in model)


@pytest.mark.parametrize(
    "algorithm", [fedavg(cohort_size=3), centralized(), local_only()], ids=["fedavg", "centralized", "local_only"]
)
def test_a_folder_does_not_change_the_training(tmp_path: Path, population: Population, algorithm: Algorithm) -> None:
    with_folder, without = run(population, algorithm, tmp_path).model, run(population, algorithm).model
    assert all(torch.equal(a, b) for a, b in zip(with_folder.parameters(), without.parameters(), strict=True))


def test_a_module_with_buffers_other_than_norm_statistics_is_refused(population: Population, tmp_path: Path) -> None:
    """Clients would share the power iteration, and a resumed run would continue with another one."""
    iterated = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(192, 4))
    model = nn.Sequential(nn.Flatten(), iterated, nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"The model changes its buffer 1\.parametrizations\.weight\.0\._u when"):
        run(population, fedavg(cohort_size=3), tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()
    norms = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), FrozenBatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    assert run(population, fedavg(cohort_size=3), model=norms).events[-1]["round"] == 4


def make_linear(classes: int, size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, classes))


@pytest.mark.parametrize("model", [make_linear, f"{__name__}:make_linear"], ids=["function", "import path"])
def test_a_model_can_be_a_function_that_gets_the_arguments_it_has(population: Population, model: Any) -> None:
    first, second = (run(population, fedavg(cohort_size=3), model=model).model for _ in range(2))
    assert torch.equal(first.state_dict()["1.weight"], second.state_dict()["1.weight"])


def test_a_function_that_returns_no_module_is_refused(population: Population) -> None:
    with pytest.raises(ValueError, match=r"returned a str: return a torch\.nn\.Module"):
        run(population, fedavg(cohort_size=3), model=lambda classes: "linear")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds is 0: set it to a whole number of at least 1"),
        ({"rounds": 2.5}, "rounds is 2.5: set it to a whole number"),
        ({"seed": -1}, "seed is -1: set it to a whole number of at least 0"),
        ({"evaluate_every": -1}, "evaluate_every is -1"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds is nan"),
        ({"engine": "steam"}, "'steam'.*auto"),
        ({"prefetch_mib": -1}, "prefetch_mib is -1: set it to .*at least 0"),
        ({"image_storage": "moon"}, "image_storage is 'moon': set it to auto, gpu or cpu"),
        ({"device": "abacus"}, "'abacus'.*auto, cpu.*cuda"),
        ({"preprocess": Preprocess(crop=20)}, "crop.*20"),
        ({"algorithm": fedavg(cohort_size=7)}, "cohort_size.*7"),
        ({"model": "resnet81"}, "Unknown model 'resnet81'"),
        ({"callbacks": ["early_stop"]}, r"Unknown callbacks 'early_stop' \(did you mean 'early_stopping'\?\)"),
        ({"metrics": ["top_7"]}, "Unknown metrics 'top_7'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ", ".join(value),
)
def test_an_invalid_value_is_refused_before_anything_is_written(
    tmp_path: Path, population: Population, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(**{"population": population, "algorithm": fedavg(cohort_size=3), **settings}, folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (fedavg, r"call it: me\.fedavg\(\)"),
        (
            replace(fedavg(cohort_size=2), **dict[str, Any](server_optimizer="adam")),
            "server_optimizer is 'adam': give a component",
        ),
    ],
)
def test_an_algorithm_that_was_not_built_is_refused(population: Population, algorithm: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(population, algorithm, rounds=1)
