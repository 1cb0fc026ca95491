"""Low-rank adapters equal peft's, and are all that trains and travels."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import manyeyes as me
from manyeyes.core.population import Population
from manyeyes.models import Adapter, build_model
from manyeyes.models.adapters import add_adapters
from manyeyes.models.flat import FlatModel

LORA = Adapter("lora", rank=2, alpha=6.0)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 1, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5), nn.Linear(5, 3)
    )


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def with_values(module: nn.Module) -> nn.Module:
    """Give every adapter values other than its initial ones."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module


def test_a_new_adapter_does_not_change_the_function() -> None:
    module = network()
    expected = module(images())
    assert add_adapters(module, LORA) == ["1", "4"]
    assert torch.equal(module(images()), expected)


@pytest.mark.slow
@pytest.mark.usefixtures("torchvision")  # which peft imports
def test_outputs_and_gradients_equal_those_of_peft() -> None:
    peft = importlib.import_module("peft")
    ours, theirs = network(), network()
    add_adapters(ours, LORA)
    with_values(ours)
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["1", "4"], modules_to_save=["5"])
    wrapped = peft.get_peft_model(theirs, config)
    layers: dict[str, Any] = {name: wrapped.base_model.model.get_submodule(name) for name in ("1", "4")}
    with torch.no_grad():
        for name, layer in layers.items():
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            a.copy_(ours.get_parameter(f"{name}.lora_a").view_as(a))
            b.copy_(ours.get_parameter(f"{name}.lora_b").view_as(b))
    outputs = [model(images()) for model in (ours, wrapped)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)
    for output in outputs:
        output.square().sum().backward()
    for name, layer in layers.items():
        for key, theirs_of in (("lora_a", layer.lora_A), ("lora_b", layer.lora_B)):
            grad, expected = ours.get_parameter(f"{name}.{key}").grad, theirs_of["default"].weight.grad
            assert grad is not None
            torch.testing.assert_close(grad, expected.view_as(grad), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_an_adapter_is_the_weight_plus_a_low_rank_product() -> None:
    module = with_values(build_model(network(), 3, adapter=LORA))
    merged = network()
    with torch.no_grad():
        for name in ("1", "4"):
            a, b = module.get_parameter(f"{name}.lora_a"), module.get_parameter(f"{name}.lora_b")
            weight = merged.get_parameter(f"{name}.weight")
            weight.add_((6.0 / 2 * b @ a).view_as(weight))
    torch.testing.assert_close(module(images()), merged(images()), rtol=1e-5, atol=1e-5)


def test_only_the_adapters_and_the_classifier_train() -> None:
    flat = FlatModel(build_model(network(), 3, adapter=LORA))
    # a and b of a 1x1 convolution 6 -> 8 and a linear layer 72 -> 5, of rank 2; the classifier 5 -> 3
    assert flat.num_shared == 2 * (6 + 8) + 2 * (72 + 5) + (5 * 3 + 3)
    assert set(flat.shapes) == {"1.lora_a", "1.lora_b", "4.lora_a", "4.lora_b", "5.weight", "5.bias"}


def test_statistics_of_norms_are_fixed_and_do_not_travel() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 3))
    flat = FlatModel(build_model(module, 3, adapter=LORA))
    assert set(flat.shapes) == {"0.lora_a", "0.lora_b", "3.weight", "3.bias"}


def test_targets_are_names_ends_of_names_or_patterns() -> None:
    def targets(*patterns: str) -> list[str]:
        block = nn.ModuleDict({"qkv": nn.Linear(4, 4), "proj": nn.Linear(4, 4)})
        module = nn.ModuleDict({"first": block, "second": block, "head": nn.Linear(4, 2)})
        module["second"] = nn.ModuleDict({"qkv": nn.Linear(4, 4), "proj": nn.Linear(4, 4)})
        return add_adapters(module, Adapter("lora", targets=patterns))

    assert targets("qkv") == ["first.qkv", "second.qkv"]
    assert targets("second.*") == ["second.qkv", "second.proj"]
    assert targets() == ["first.qkv", "first.proj", "second.qkv", "second.proj"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"adapter": Adapter("lora", targets=("4", "qkv"))}, r"'qkv' matches no linear .* \(such as 1, 4\)"),
        ({"adapter": Adapter("lora", targets=("0",))}, "'0' matches no linear or 1x1 convolution layer"),
        ({"adapter": {"name": "lora", "rank": 0}}, "model.adapter.rank is 0: set it to a whole number of at least 1"),
        ({"adapter": {"name": "lora", "targets": "qkv"}}, "model.adapter.targets is 'qkv': set it to a list"),
        ({"adapter": LORA, "trainable": "last:2"}, "model.adapter=lora does not go with model.trainable=last:2"),
        ({"adapter": LORA, "norm": "live"}, "model.adapter=lora does not go with model.norm=live"),
    ],
)
def test_an_adapter_that_is_impossible_is_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        build_model(network(), 3, **options)
    assert "\n" not in str(error.value)


def test_a_run_uploads_the_adapters_and_the_classifier_alone(population: Population) -> None:
    module = build_model(network(), 3, adapter=LORA)
    result = me.train(population, module, me.fedavg(cohort_size=2), rounds=2)
    assert result.events[-1]["bytes_up"] == 2 * 4 * FlatModel(module).num_shared
    trained = result.model.state_dict()
    fixed = [key for key, value in module.state_dict().items() if torch.equal(trained[key], value)]
    assert fixed == ["0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"]


def test_a_personal_head_leaves_the_adapters_alone_to_travel(population: Population) -> None:
    module = build_model(network(), 3, adapter=LORA)
    result = me.train(population, module, me.fedper(cohort_size=2, head_layers=1), rounds=1)
    assert result.events[-1]["bytes_up"] == 2 * 4 * (2 * (6 + 8) + 2 * (72 + 5))
