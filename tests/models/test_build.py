"""Building models by name, import path and factory, from a seed, for images of any size, and which layers train."""

from __future__ import annotations

import sys
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from torch import nn

from manyeyes.core.registry import names
from manyeyes.models import build_model, model_options, set_trainable

MODELS = ("linear", "lenet", "resnet18", "resnet34", "mobilenet_v1", "mobilenet_v2", "efficientnet_lite0")
USER_MODULE = """
from torch import nn

def perceptron(classes: int, size: int, hidden: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, hidden), nn.Linear(hidden, classes))
"""


class Pooled(nn.Module):
    """A user's own model, whose signature asks for the classes alone."""

    def __init__(self, classes: int, bias: Annotated[bool, "whether the classifier has a bias"] = True) -> None:
        super().__init__()
        self.fc = nn.Linear(3, classes, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


def not_a_model(classes: int) -> dict[str, int]:
    return {"classes": classes}


def with_seed(classes: int, seed: int, norm: str = "mine") -> nn.Module:
    module = Pooled(classes)
    nn.init.constant_(module.fc.weight, seed)
    module.norm = norm  # type: ignore[assignment]
    return module


def have_equal_weights(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def random_images(count: int, size: int) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_all_models_are_registered() -> None:
    assert set(names("model")) >= set(MODELS)


@pytest.mark.fast_cases("lenet", "linear", "mobilenet", "resnet18")
@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    assert have_equal_weights(build_model(name, 10, seed=3), build_model(name, 10, seed=3))


@pytest.mark.fast_cases("lenet", "linear", "mobilenet", "resnet18")
@pytest.mark.parametrize("name", MODELS)
def test_another_seed_gives_other_weights(name: str) -> None:
    assert not have_equal_weights(build_model(name, 10, seed=3), build_model(name, 10, seed=4))


@pytest.mark.fast_cases("lenet", "linear", "mobilenet", "resnet18")
@pytest.mark.parametrize("name", MODELS)
def test_the_global_generator_is_neither_used_nor_changed(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_model(name, 10)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert have_equal_weights(first, build_model(name, 10))


@pytest.mark.fast_cases("lenet", "linear", "mobilenet", "resnet18-32")
@pytest.mark.parametrize("size", [32, 64, 224])
@pytest.mark.parametrize("name", MODELS)
def test_images_of_any_size_give_logits(name: str, size: int) -> None:
    options: dict[str, Any] = {"width": 8} if name == "lenet" else {}
    model = build_model(name, 7, size=size, **options)
    with torch.no_grad():
        assert model(random_images(1, size)).shape == (1, 7)


@pytest.mark.fast_cases("lenet", "linear", "mobilenet", "resnet18")
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_gradient(name: str) -> None:
    model = build_model(name, 10)
    loss = nn.functional.cross_entropy(model(random_images(4, 32)), torch.arange(4))
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    keys = [key for key, _ in model.named_parameters()]
    assert [key for key, grad in zip(keys, gradients, strict=True) if grad is None or not grad.any()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_channels_last_gives_the_same_logits(name: str) -> None:
    model, x = build_model(name, 10).eval(), random_images(2, 32)
    with torch.no_grad():
        expected = model(x)
        logits = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "norm"), [("lenet", "group"), ("resnet18", "frozen"), ("mobilenet_v1", "group")])
def test_gradients_of_several_clients_at_once_equal_those_one_by_one(name: str, norm: str) -> None:
    model = build_model(name, 10, norm=norm)
    buffers = dict(model.named_buffers())

    def loss(theta: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(model, (theta, buffers), (x,))
        return nn.functional.cross_entropy(logits, torch.arange(2))

    theta = {key: value.detach() for key, value in model.named_parameters()}
    theta_K = {key: torch.stack([value, 1.1 * value]) for key, value in theta.items()}
    x_KBCHW = random_images(4, 32).view(2, 2, 3, 32, 32)
    second = torch.func.grad(loss)({key: value[1] for key, value in theta_K.items()}, x_KBCHW[1])
    for key, value_K in torch.func.vmap(torch.func.grad(loss))(theta_K, x_KBCHW).items():
        torch.testing.assert_close(value_K[1], second[key], rtol=1e-3, atol=1e-4 * float(second[key].abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_no_model_has_dropout(name: str) -> None:
    assert not any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in build_model(name, 10).modules())


def test_a_class_of_the_users_own_is_called_with_what_its_signature_asks_for() -> None:
    model = build_model(Pooled, 4, size=9, bias=False)
    assert isinstance(model, Pooled) and model.fc.out_features == 4 and model.fc.bias is None


def test_a_function_of_the_users_own_gets_the_seed_and_its_own_defaults() -> None:
    model = build_model(with_seed, 4, seed=7)
    assert bool((model.get_parameter("fc.weight") == 7).all()) and model.norm == "mine"


def test_a_model_is_built_from_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_models.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_models", raising=False)
    model = build_model("user_models:perceptron", 5, size=8, hidden=3, trainable="last:1")
    assert model(random_images(2, 8)).shape == (2, 5)
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    with pytest.raises(ValueError, match=r"model\.hiden is not an option .*did you mean 'hidden'"):
        build_model("user_models:perceptron", 5, hiden=3)


def test_options_are_those_of_the_model_and_those_of_all_models() -> None:
    common = ["pretrained", "trainable", "single_image", "adapter"]
    assert [option.name for option in model_options("lenet")] == ["width", "norm", *common]
    assert [option.name for option in model_options("mobilenet_v2")] == ["norm", "bottleneck", *common]
    assert [option.name for option in model_options(Pooled)] == ["bias", "norm", *common]


@pytest.mark.parametrize("model", [*MODELS, Pooled])
def test_every_option_has_a_default_and_a_help_text(model: Any) -> None:
    for option in model_options(model):
        assert option.help and option.default is not MISSING


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("resnet81", {}, "Unknown model 'resnet81' .did you mean 'resnet18'.*: choose "),
        ("resnet18", {"norm": "layer"}, "model.norm is 'layer': set it to group, frozen or live"),
        ("lenet", {"norm": "layer"}, "model.norm is 'layer'"),
        ("lenet", {"classes": 0}, "classes is 0: set it to a whole number of at least 1"),
        ("linear", {"size": 0}, "size is 0: set it to a whole number of at least 1"),
        ("lenet", {"width": 0}, "model.width is 0: set it to a whole number of at least 1"),
        ("mobilenet_v2", {"bottleneck": -1}, "model.bottleneck is -1: set it to a whole number of at least 0"),
        ("resnet18", {"width": 16}, "model.width is not an option of model=resnet18"),
        ("resnet18", {"bottleneck": 64}, "model.bottleneck is not an option of model=resnet18"),
        ("lenet", {"trainable": "none"}, "model.trainable is 'none': give 'all' or 'last:n'"),
        (Pooled, {"norm": "layer"}, "model.norm is 'layer': set it to group, frozen or live"),
        ("lenet", {"single_image": "skip"}, "model.single_image is 'skip': set it to refuse or running"),
        ("lenet", {"adapter": {"name": "dora"}}, "model.adapter.name is 'dora': set it to none or lora"),
        (not_a_model, {}, "made a dict: return a torch.nn.Module"),
        ("no.such.module:net", {}, "cannot import no.such.module"),
    ],
)
def test_an_invalid_value_is_refused_in_one_sentence(name: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        build_model(name, **{"classes": 10, **options})
    assert "\n" not in str(error.value)


def trained(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def test_last_two_layers_of_landmarks_are_bottleneck_and_classifier() -> None:
    model = build_model("mobilenet_v2", 2028, bottleneck=64, trainable="last:2")
    assert trained(model) == {"bottleneck.weight", "bottleneck.bias", "classifier.1.weight", "classifier.1.bias"}


def test_all_layers_train_by_default() -> None:
    assert all(parameter.requires_grad for parameter in build_model("resnet18", 10).parameters())


def test_a_later_setting_replaces_an_earlier_one() -> None:
    model = build_model("lenet", 10, trainable="last:1")
    set_trainable(model, "all")
    set_trainable(model, "last:2")
    assert trained(model) == {"fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"}


@pytest.mark.parametrize("spec", ["", "first:2", "last:0", "last:-1", "last:two", "last:", "last:2 "])
def test_an_unknown_setting_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="give 'all' or 'last:n'"):
        set_trainable(build_model("lenet", 10), spec)


def test_more_layers_than_there_are_is_refused_and_nothing_changes() -> None:
    model = build_model("lenet", 10)
    with pytest.raises(ValueError, match="'last:6' and the model has 5 layers: give fewer"):
        set_trainable(model, "last:6")
    assert len(trained(model)) == 10
