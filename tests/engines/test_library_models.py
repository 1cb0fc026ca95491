"""Models of timm and torchvision on every engine that takes them, whole and with adapters, equal to the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from manyeyes.models.norms import group_norms
from tests.engines.engine_runs import initial_state, make_setup, relative_error, run_rounds, with_all_clients

SIZE = 64  # at 32 px, the statistics of the last norms would be of a few values
MODELS = ("timm:vit_tiny_patch16_224", "timm:resnet18", "timm:mobilenetv3_small_050", "torchvision:resnet50")
VARIANTS: dict[str, dict[str, Any]] = {"whole": {}, "lora": {"adapter": Adapter("lora", rank=4)}}
# At a kink, a rounding error moves the gradient of a unit from 0 to 1: `vmap`, whose convolutions are grouped, then differs
# by a hundredth. In float64, or with these smooth layers, it does not.
SMOOTH: dict[type[nn.Module], Callable[[], nn.Module]] = {
    nn.ReLU: nn.SiLU,
    nn.Hardswish: nn.SiLU,
    nn.Hardsigmoid: nn.Sigmoid,
    nn.MaxPool2d: lambda: nn.AvgPool2d(3, stride=2, padding=1),
}
MAX_GROUPS = 4
# With a learning rate of 0.001, an update is so small that the rounding of the weights is 3e-4 of it.
ALGORITHM = with_all_clients(fedavg(batch_size=4, lr=0.1))


def make_population() -> Population:
    """Return two users of four images, which are a batch each.

    The images are smooth. Noise looks alike to a deep model, whose norms would amplify the rounding of what differs.
    """
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    coarse = torch.rand(8, 3, 8, 8, generator=generator)
    images = nn.functional.interpolate(coarse, size=SIZE, mode="bilinear").permute(0, 2, 3, 1)
    labels, users = SingleLabels(rng.integers(0, 3, 8), tuple("abc")), np.repeat([0, 1], 4)
    return Population.from_arrays((images * 255).to(torch.uint8).numpy(), labels, users)


POPULATION = make_population()


@cache
def model(name: str, variant: str) -> FlatModel:
    """Return a model whose float32 gradients are close to those in float64: smooth, with norms of many values."""
    module = build_model(name, 3, size=SIZE)
    for path, layer in list(module.named_modules()):
        if type(layer) in SMOOTH:
            module.set_submodule(path, SMOOTH[type(layer)]())
        if path.endswith("bn3") and name.endswith("resnet50"):  # as with zero_init_residual, gradients do not grow
            assert isinstance(layer, nn.BatchNorm2d), "the last norm of a bottleneck is not a BatchNorm"
            nn.init.constant_(layer.weight, 0.1)
    group_norms(module, MAX_GROUPS)
    return FlatModel(with_seeded_dropout(build_model(module, 3, **VARIANTS[variant])))


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
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_clients_side_by_side_equal_those_one_by_one_in_float64(name: str) -> None:
    module = build_model(name, 3, size=32, norm="group").double()
    theta = {key: value.detach() for key, value in module.named_parameters()}
    x_KBCHW = torch.randn(2, 2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(module, theta, (x,))
        return nn.functional.cross_entropy(logits, torch.arange(2))

    theta_K = {key: torch.stack([value, value]) for key, value in theta.items()}
    both = torch.func.vmap(torch.func.grad(loss))(theta_K, x_KBCHW)
    second = torch.func.grad(loss)(theta, x_KBCHW[1])
    actual, expected = (
        torch.cat([grad.flatten() for grad in grads])
        for grads in ([both[key][1] for key in theta], [second[key] for key in theta])
    )
    assert relative_error(actual, expected) < 1e-10


@pytest.mark.slow
@pytest.mark.usefixtures("timm")
def test_an_engine_that_pads_batches_refuses_live_batch_norm() -> None:
    module = build_model(MODELS[1], 3, size=32, norm="live")
    with pytest.raises(ValueError, match="engine=vmap does not support a model that mixes the examples of a batch"):
        choose_engine(ALGORITHM, make_setup(module, POPULATION, engine="vmap"))


@pytest.mark.gpu
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_two_rounds_on_a_gpu_equal_those_of_the_reference(name: str, variant: str, engine: str) -> None:
    expected = update("reference", name, variant, "cuda")
    assert relative_error(update(engine, name, variant, "cuda"), expected) < 1e-5


@pytest.mark.gpu
@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("norm", ["group", "frozen"])
@pytest.mark.parametrize("name", MODELS)
def test_models_with_outputs_of_one_pixel_are_vectorized_on_a_gpu(name: str, norm: str) -> None:
    module = build_model(name, 3, size=32, norm=norm)
    images = POPULATION.images[:, ::2, ::2]
    setup = make_setup(module, replace(POPULATION, images=images), device=torch.device("cuda"), engine="vmap")
    assert choose_engine(ALGORITHM, setup).name == "vmap"
