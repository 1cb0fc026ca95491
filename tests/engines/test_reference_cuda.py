"""The reference engine on a GPU equals itself on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.components import AllClients
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population, SingleLabels
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result
from manyeyes.training.train import train
from tests.engines.engine_runs import relative_error, with_all_clients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def population() -> Population:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (120, 32, 32, 3), np.uint8)
    labels = SingleLabels(rng.integers(0, 5, 120), tuple("abcde"))
    return Population.from_arrays(images, labels, rng.integers(0, 8, 120))


def run(population: Population, model: nn.Module | str, algorithm: Algorithm, device: str, **options: Any) -> Result:
    """Train on the reference engine."""
    return train(population, model, algorithm, device=device, engine="reference", **options)


def smooth_model() -> nn.Module:
    """Return a model without ReLUs or pools, where rounding in the last bit would choose between two gradients."""
    torch.manual_seed(0)
    features = nn.Conv2d(3, 8, 5, stride=2), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2), nn.Tanh()
    module = nn.Sequential(*features, nn.Flatten(), nn.Linear(200, 5))
    module.head = ("5", "2")  # type: ignore[assignment]
    return module


@pytest.mark.parametrize("name", [name for name in NAMED_ALGORITHMS if name != "fedbn"])  # it needs a model with norms
def test_three_rounds_equal_those_on_the_cpu(population: Population, name: str) -> None:
    keywords = {"virtual_client_size": 16} if name == "fedvc" else {}
    algorithm = with_all_clients(NAMED_ALGORITHMS[name](batch_size=8, lr=0.05, **keywords))
    preprocess = Preprocess(crop=28, pad=2, flip_horizontal=True)
    expected, actual = (
        run(population, smooth_model(), algorithm, device, preprocess=preprocess, rounds=3).model.cpu().state_dict()
        for device in ("cpu", "cuda")
    )
    for key, tensor in expected.items():
        torch.testing.assert_close(actual[key], tensor, rtol=1e-4, atol=2e-5, msg=f"{key} differs")


@pytest.mark.parametrize(
    ("model_name", "norm", "algorithm_name"),
    [
        ("resnet18", "group", "fedavg"),
        ("resnet18", "live", "fedavg"),
        ("resnet18", "live", "fedbn"),
        ("mobilenet_v2", "group", "fedavg"),
    ],
)
def test_one_step_of_deep_models(population: Population, model_name: str, norm: str, algorithm_name: str) -> None:
    algorithm = replace(NAMED_ALGORITHMS[algorithm_name](batch_size=64, lr=0.01), sampler=AllClients())
    model = build_model(model_name, 5, norm=norm)
    first = FlatModel(model).read()
    expected, actual = (
        first - FlatModel(run(population, model, algorithm, device, rounds=1).model.cpu()).read()
        for device in ("cpu", "cuda")
    )
    # float32 is up to 2e-3 from float64 on both devices: a unit near 0 may fall to either side of a ReLU
    assert relative_error(actual, expected) <= 5e-3


def test_a_run_repeats_bit_for_bit_and_resumes_exactly(population: Population, tmp_path: Path) -> None:
    algorithm = NAMED_ALGORITHMS["scaffold"](cohort_size=4, batch_size=8)

    def run_in(folder: str, rounds: int, resume: bool = False) -> torch.Tensor:
        result = run(
            population,
            "lenet",
            algorithm,
            "cuda",
            test=population,
            rounds=rounds,
            folder=tmp_path / folder,
            resume=resume,
            checkpoint_seconds=0,
        )
        return FlatModel(result.model).read()

    straight = run_in("straight", 6)
    run_in("resumed", 3)
    assert torch.equal(run_in("resumed", 6, resume=True), straight)


def test_a_random_resized_crop_equals_that_on_the_cpu() -> None:
    preprocess = Preprocess(crop=24, flip_horizontal=True, flip_vertical=True, scale=(0.08, 1.0))
    images = torch.randint(0, 256, (200, 32, 40, 3), dtype=torch.uint8)
    uniforms = torch.rand(200, preprocess.num_uniforms)
    actual = preprocess.augment(images.cuda(), uniforms.cuda())
    assert actual.is_cuda
    torch.testing.assert_close(actual.cpu(), preprocess.augment(images, uniforms), rtol=0, atol=1e-5)


def test_images_on_the_gpu_train_as_those_on_the_cpu(population: Population) -> None:
    algorithm = NAMED_ALGORITHMS["fedavg"](cohort_size=4, batch_size=8)
    expected, *others = (
        run(population, "lenet", algorithm, "cuda", test=population, rounds=3, image_storage=storage)
        for storage in ("cpu", "gpu", "auto")
    )
    for result in others:
        assert result.events[-1]["accuracy"] == expected.events[-1]["accuracy"]
        assert torch.equal(FlatModel(result.model).read(), FlatModel(expected.model).read())
