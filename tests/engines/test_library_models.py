"""Models of timm and torchvision on every engine that takes them, whole and with adapters, equal to the reference."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.core.population import Population, SingleLabels
from manyeyes.engines.select import choose_engine
from manyeyes.models import Adapter, build_model
from manyeyes.models.flat import FlatModel, with_seeded_dropout
from tests.engines.engine_runs import initial_state, make_setup, relative_error, run_rounds, with_all_clients

SIZE = 64  # at 32 px, a rounding error can turn on a unit of one pixel, and change gradients by a hundredth
MODELS = ("timm:vit_tiny_patch16_224", "timm:resnet18", "timm:mobilenetv3_small_050", "torchvision:resnet50")
# Statistics of one batch or of one image would be taken over a few values here, and amplify rounding errors.
VARIANTS: dict[str, dict[str, Any]] = {"whole": {"norm": "frozen"}, "lora": {"adapter": Adapter("lora", rank=4)}}
ALGORITHM = with_all_clients(fedavg(batch_size=4, lr=0.001))


def make_population() -> Population:
    """Return two users of four images, which are a batch each."""
    rng = np.random.default_rng(0)
    images, users = rng.integers(0, 256, (8, SIZE, SIZE, 3), np.uint8), np.repeat([0, 1], 4)
    return Population.from_arrays(images, SingleLabels(rng.integers(0, 3, 8), tuple("abc")), users)


POPULATION = make_population()


@cache
def model(name: str, variant: str) -> FlatModel:
    """Return a model whose norms have the statistics of its activations, as trained ones have."""
    module = build_model(name, 3, size=SIZE)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None  # the mean of all batches so far
            nn.init.constant_(layer.weight, 0.2)  # so that 16 residual blocks do not add up to huge gradients
    with torch.no_grad():
        module(torch.randn(16, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)))
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.1
    return FlatModel(with_seeded_dropout(build_model(module, 3, **VARIANTS.get(variant, {}))))


def update(engine: str, name: str, variant: str, device: str = "cpu") -> Tensor:
    """Return the update of two rounds."""
    flat = model(name, variant)
    if device != "cpu":
        flat = FlatModel(with_seeded_dropout(flat.module).to(device))
    setup = make_setup(flat, POPULATION, device=torch.device(device), engine=engine, workers=2)
    with choose_engine(ALGORITHM, setup) as chosen:
        first = initial_state(ALGORITHM, flat)
        state, _, _ = run_rounds(ALGORITHM, chosen, POPULATION, first, 2, seed=3)
    return (first.weights - state.weights).cpu()


@cache
def reference_update(name: str, variant: str) -> Tensor:
    return update("reference", name, variant)


@pytest.mark.slow
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("engine", ["multiprocess", "vmap", "cuda_graphs"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_two_rounds_equal_those_of_the_reference(name: str, variant: str, engine: str) -> None:
    expected = reference_update(name, variant)
    assert float(expected.norm()) > 0
    assert relative_error(update(engine, name, variant), expected) < 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("timm")
def test_an_engine_that_pads_batches_refuses_live_batch_norm() -> None:
    with pytest.raises(ValueError, match="engine=vmap does not support a model that mixes the examples of a batch"):
        update("vmap", MODELS[1], "live")


@pytest.mark.gpu
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_two_rounds_on_a_gpu_equal_those_of_the_reference(name: str, variant: str, engine: str) -> None:
    expected = update("reference", name, variant, "cuda")
    assert relative_error(update(engine, name, variant, "cuda"), expected) < 1e-5
