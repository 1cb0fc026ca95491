"""Build: every model by name, from a seed, on images of any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from manyeyes.models import MODELS, build_model


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def photos(count: int, size: int) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", MODELS)
def test_same_seed_gives_same_weights(name: str) -> None:
    assert same(build_model(name, 10, seed=3), build_model(name, 10, seed=3))


@pytest.mark.parametrize("name", MODELS)
def test_another_seed_gives_other_weights(name: str) -> None:
    assert not same(build_model(name, 10, seed=3), build_model(name, 10, seed=4))


@pytest.mark.parametrize("name", MODELS)
def test_global_generator_is_neither_read_nor_disturbed(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_model(name, 10)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(first, build_model(name, 10))


@pytest.mark.parametrize("size", [32, 64, 224])
@pytest.mark.parametrize("name", MODELS)
def test_images_of_a_size_give_logits(name: str, size: int) -> None:
    model = build_model(name, 7, size=size, width=8 if name == "lenet" else 64)
    with torch.no_grad():
        assert model(photos(1, size)).shape == (1, 7)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_reaches_every_parameter(name: str) -> None:
    model = build_model(name, 10)
    loss = nn.functional.cross_entropy(model(photos(4, 32)), torch.arange(4))
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    names = [name for name, _ in model.named_parameters()]
    assert [key for key, g in zip(names, gradients, strict=True) if g is None or not g.any()] == []


@pytest.mark.parametrize("name", MODELS)
def test_channels_last_gives_the_same_logits(name: str) -> None:
    model, x = build_model(name, 10).eval(), photos(2, 32)
    with torch.no_grad():
        expected = model(x)
        found = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "norm"), [("lenet", "group"), ("resnet18", "frozen_batch"), ("mobilenet_v1", "group")]
)
def test_gradients_of_many_clients_at_once_equal_those_one_by_one(name: str, norm: str) -> None:
    model = build_model(name, 10, norm=norm)
    buffers = dict(model.named_buffers())

    def loss(theta: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, (theta, buffers), (x,))
        return nn.functional.cross_entropy(logits, torch.arange(2))

    theta = {key: value.detach() for key, value in model.named_parameters()}
    theta_K = {key: torch.stack([value, 1.1 * value]) for key, value in theta.items()}
    x_KBCHW = photos(4, 32).view(2, 2, 3, 32, 32)
    second = torch.func.grad(loss)({key: value[1] for key, value in theta_K.items()}, x_KBCHW[1])
    for key, value_K in torch.func.vmap(torch.func.grad(loss))(theta_K, x_KBCHW).items():
        torch.testing.assert_close(value_K[1], second[key], rtol=1e-3, atol=1e-4 * float(second[key].abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_no_model_drops_out(name: str) -> None:
    assert not any(isinstance(part, nn.modules.dropout._DropoutNd) for part in build_model(name, 10).modules())


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("resnet81", {}, "'resnet81' is not known; choose one of linear, lenet, resnet18, resnet34, mobilenet_v1"),
        ("resnet18", {"norm": "layer"}, "'layer' is not known; choose one of group, frozen_batch, batch"),
        ("lenet", {"norm": "layer"}, "'layer' is not known"),
        ("lenet", {"classes": 0}, "lenet got classes=0; give 1 or more"),
        ("linear", {"size": 0}, "linear got size=0; give 1 or more"),
        ("lenet", {"width": 0}, "lenet got width=0; give 1 or more"),
        ("mobilenet_v2", {"bottleneck": -1}, "mobilenet_v2 got bottleneck=-1; give 0 or more"),
        ("resnet18", {"width": 16}, "resnet18 has one width and got width=16"),
        ("resnet18", {"bottleneck": 64}, "resnet18 has no bottleneck and got bottleneck=64"),
        ("lenet", {"train": "none"}, "'none' is not known; give 'all' or 'last:n'"),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        build_model(name, **{"classes": 10, **options})
    assert "\n" not in str(caught.value)
