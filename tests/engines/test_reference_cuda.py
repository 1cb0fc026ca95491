"""The reference engine on a GPU computes what it computes on the CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.components import AllClients, Centralized
from manyeyes.core.population import Population, SingleLabels
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train as train_anyhow

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

train = partial(train_anyhow, engine="reference")


@pytest.fixture(scope="module")
def population() -> Population:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (120, 32, 32, 3), np.uint8)
    return Population.from_arrays(
        images, SingleLabels(rng.integers(0, 5, 120), tuple("abcde")), rng.integers(0, 8, 120)
    )


def smooth() -> nn.Module:
    """Nothing of it has a bend, where rounding in the last bit would decide between two slopes."""
    torch.manual_seed(0)
    shrink = nn.Conv2d(3, 8, 5, stride=2), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=2), nn.Tanh()
    module = nn.Sequential(*shrink, nn.Flatten(), nn.Linear(200, 5))
    module.head = ("5", "2")  # type: ignore[assignment]
    return module


@pytest.mark.parametrize(
    "name", [name for name in NAMED_ALGORITHMS if name != "fedbn"]
)  # which wants a model with norms
def test_three_rounds_equal_those_on_the_cpu(population: Population, name: str) -> None:
    options = {"virtual_client_size": 16} if name == "fedvc" else {}
    algorithm = NAMED_ALGORITHMS[name](batch_size=8, lr=0.05, **options)
    if not isinstance(algorithm.sampler, Centralized):
        algorithm = replace(algorithm, sampler=AllClients())
    augment = Preprocess(crop=28, pad=2, flip_horizontal=True)
    ends = [
        train(population, smooth(), algorithm, preprocess=augment, rounds=3, device=device).model.cpu().state_dict()
        for device in ("cpu", "cuda")
    ]
    for key, tensor in ends[0].items():
        torch.testing.assert_close(
            ends[1][key], tensor, rtol=1e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize(
    ("name", "norm", "how"),
    [
        ("resnet18", "group", "fedavg"),
        ("resnet18", "batch", "fedavg"),
        ("resnet18", "batch", "fedbn"),
        ("mobilenet_v2", "group", "fedavg"),
    ],
)
def test_deep_models_train_alike(population: Population, name: str, norm: str, how: str) -> None:
    algorithm = replace(NAMED_ALGORITHMS[how](batch_size=64, lr=0.01), sampler=AllClients())  # one step a client
    model = build_model(name, 5, norm=norm)
    begin = FlatModel(model).read()
    cpu, gpu = (
        begin - FlatModel(train(population, model, algorithm, rounds=1, device=device).model.cpu()).read()
        for device in ("cpu", "cuda")
    )
    # On either device float32 is up to 2e-3 from float64 here: a unit near 0 falls to the other side of a ReLU.
    assert torch.linalg.vector_norm(gpu - cpu) <= 5e-3 * torch.linalg.vector_norm(cpu)


def test_a_run_on_the_gpu_repeats_bit_for_bit_and_resumes_exactly(population: Population, tmp_path: Path) -> None:
    options = {"test": population, "device": "cuda", "checkpoint_seconds": 0}
    algorithm = NAMED_ALGORITHMS["scaffold"](cohort_size=4, batch_size=8)
    straight = train(population, "lenet", algorithm, rounds=6, folder=tmp_path / "a", **options)
    train(population, "lenet", algorithm, rounds=3, folder=tmp_path / "b", **options)
    resumed = train(population, "lenet", algorithm, rounds=6, folder=tmp_path / "b", resume=True, **options)
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_random_resized_crop_equals_that_on_the_cpu() -> None:
    augment = Preprocess(crop=24, flip_horizontal=True, flip_vertical=True, scale=(0.08, 1.0))
    images, dice = torch.randint(0, 256, (200, 32, 40, 3), dtype=torch.uint8), torch.rand(200, augment.num_uniforms)
    found = augment.augment(images.cuda(), dice.cuda())
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), augment.augment(images, dice), rtol=0, atol=1e-5)


def test_images_on_the_gpu_train_as_those_on_the_host(population: Population) -> None:
    options = {"test": population, "device": "cuda"}
    ends = [
        train(
            population,
            "lenet",
            NAMED_ALGORITHMS["fedavg"](cohort_size=4, batch_size=8),
            rounds=3,
            image_storage=place,
            **options,
        )
        for place in ("host", "device", "auto")
    ]
    for end in ends[1:]:
        assert end.events[-1]["accuracy"] == ends[0].events[-1]["accuracy"]
        for one, other in zip(ends[0].model.parameters(), end.model.parameters(), strict=True):
            assert torch.equal(one, other)
