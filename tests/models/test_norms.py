"""Norms: frozen ones compute the same function, group ones divide the channels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.core.population import Population, SingleLabels
from manyeyes.models import FrozenBatchNorm2d, build_model, freeze_norms, group_norms
from manyeyes.models.norms import group_count
from manyeyes.training.train import train


class BatchNormAct2d(nn.BatchNorm2d):
    """timm's layer: batch norm, then dropout and an activation."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.drop(super().forward(x)))
        return y


class DoublingBatchNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_trained_norms(module: nn.Module) -> nn.Module:
    """Return the module with norms whose values are neither 0 nor 1, as after training."""
    rng = generator(1)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.normal_(generator=rng)
            layer.running_var.uniform_(0.5, 2.0, generator=rng)
            nn.init.normal_(layer.weight, generator=rng)
            nn.init.normal_(layer.bias, generator=rng)
    return module


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [nn.BatchNorm2d, BatchNormAct2d])
def test_freezing_keeps_the_function_of_eval_mode_bit_for_bit(make: Callable[[int], nn.Module], training: bool) -> None:
    model = with_trained_norms(
        nn.Sequential(nn.Conv2d(3, 12, 3), make(12), nn.Conv2d(12, 4, 3), nn.BatchNorm2d(4, eps=1e-3))
    )
    x = torch.randn(5, 3, 9, 9, generator=generator())
    expected = model.eval()(x)
    assert torch.equal(freeze_norms(model).train(training)(x), expected)


def test_frozen_norm_equals_its_equation() -> None:
    norm = freeze_norms(with_trained_norms(nn.BatchNorm2d(3)))
    assert isinstance(norm, FrozenBatchNorm2d)
    assert norm.weight is not None
    assert norm.bias is not None
    x = torch.randn(2, 3, 4, 4, generator=generator())
    mean, var, weight, bias = (v.view(3, 1, 1) for v in (norm.running_mean, norm.running_var, norm.weight, norm.bias))
    torch.testing.assert_close(norm(x), weight * (x - mean) / (var + 1e-5).sqrt() + bias)


def test_freezing_a_resnet_keeps_its_outputs() -> None:
    model = with_trained_norms(build_model("resnet18", 10, norm="live")).eval()
    x = torch.randn(2, 3, 32, 32, generator=generator())
    expected = model(x)
    assert torch.equal(freeze_norms(model).train()(x), expected)


def test_freezing_keeps_all_keys_except_the_counters() -> None:
    frozen = freeze_norms(build_model("resnet18", 10, norm="live"))
    assert list(frozen.state_dict()) == list(build_model("resnet18", 10, norm="frozen").state_dict())


def test_frozen_statistics_stay_while_scale_and_bias_train() -> None:
    norm = freeze_norms(with_trained_norms(nn.BatchNorm2d(3))).train()
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        norm(torch.randn(4, 3, 5, 5, generator=generator())).square().sum().backward()
        optimizer.step()
    changed = {key for key, value in norm.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"weight", "bias"}


def test_freezing_a_shared_norm_keeps_it_shared() -> None:
    shared = nn.BatchNorm2d(3)
    model = freeze_norms(nn.Sequential(shared, nn.ReLU(), shared))
    assert model.get_submodule("0") is model.get_submodule("2")


def test_freezing_keeps_a_norm_without_scale() -> None:
    norm = nn.BatchNorm2d(3, affine=False).eval()
    norm.running_mean = torch.tensor([1.0, 2.0, 3.0])
    x = torch.randn(2, 3, 4, 4, generator=generator())
    expected = norm(x)
    assert torch.equal(freeze_norms(norm)(x), expected)


def test_norm_without_statistics_is_refused_and_nothing_changes() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="'1' has no running statistics"):
        freeze_norms(model)
    assert type(model[0]) is nn.BatchNorm2d


def test_norm_of_unknown_forward_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'1' is a DoublingBatchNorm"):
        group_norms(nn.Sequential(nn.ReLU(), DoublingBatchNorm(4)), 2)


@given(channels=st.integers(1, 2048), max_groups=st.integers(1, 64))
def test_group_count_is_the_largest_divisor_up_to_the_maximum(channels: int, max_groups: int) -> None:
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    assert group_count(channels, max_groups) == max(n for n in divisors if n <= max_groups)


@pytest.mark.parametrize(("channels", "max_groups", "count"), [(64, 32, 32), (16, 32, 16), (48, 32, 24), (7, 4, 1)])
def test_group_count_equals_hand_computation(channels: int, max_groups: int, count: int) -> None:
    assert group_count(channels, max_groups) == count


def test_less_than_one_group_is_refused() -> None:
    with pytest.raises(ValueError, match="max_groups is 0: set it to a whole number of at least 1"):
        group_norms(nn.BatchNorm2d(4), 0)


def test_group_norms_replace_every_batch_norm_and_keep_scale_and_bias() -> None:
    model = with_trained_norms(build_model("resnet18", 10, norm="live"))
    weight = model.get_parameter("layer3.0.bn1.weight").clone()
    group_norms(model, 32)
    assert list(model.state_dict()) == list(build_model("resnet18", 10, norm="group").state_dict())
    assert torch.equal(model.get_parameter("layer3.0.bn1.weight"), weight)


def test_group_norm_in_place_of_an_activating_norm_still_activates() -> None:
    x = torch.randn(2, 4, 3, 3, generator=generator())
    torch.testing.assert_close(group_norms(BatchNormAct2d(4), 2)(x), F.relu(F.group_norm(x, 2)))


def test_resnet_group_norms_have_32_groups() -> None:
    assert {p.num_groups for p in build_model("resnet18", 10).modules() if isinstance(p, nn.GroupNorm)} == {32}


@pytest.mark.parametrize(("name", "norm"), [("resnet18", "frozen"), ("mobilenet_v1", "group")])
def test_without_live_batch_norm_an_example_does_not_influence_another(name: str, norm: str) -> None:
    model = build_model(name, 10, norm=norm).train()
    x = torch.randn(3, 3, 32, 32, generator=generator())
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


class Network(nn.Module):
    """A user's own module with a BatchNorm of two kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12)
        self.fc, self.last, self.head = nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.last(self.fc(self.norm(self.conv(x)).mean((2, 3)))))
        return y


def test_a_module_is_frozen_exactly_and_the_original_stays(capsys: pytest.CaptureFixture[str]) -> None:
    module = with_trained_norms(Network())
    frozen = build_model(module, 2, norm="frozen")
    x = torch.randn(3, 3, 8, 8, generator=generator())
    assert torch.equal(frozen.train()(x), module.eval()(x))
    assert isinstance(module.norm, nn.BatchNorm2d)
    assert capsys.readouterr().err == (
        "model.norm=frozen: 2 BatchNorm layers have fixed statistics now: exactly the function of evaluation mode.\n"
    )


def test_a_group_norm_in_place_of_a_batch_norm_has_at_least_four_channels_in_a_group() -> None:
    converted = build_model(Network(), 2, norm="group")
    groups = [layer.num_groups for layer in converted.modules() if isinstance(layer, nn.GroupNorm)]
    assert groups == [3, 2]  # of 12 and 8 channels


def test_a_batch_of_one_image_uses_the_running_statistics_and_leaves_them() -> None:
    module = build_model(Network(), 2, norm="live", single_image="running").train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    x = torch.randn(1, 3, 8, 8, generator=generator())
    module.get_submodule("norm").eval()
    actual = module(x)
    assert torch.equal(actual, module.eval()(x))
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert module.train().get_submodule("last").training
    module(torch.randn(2, 3, 8, 8, generator=generator()))
    assert not torch.equal(module.state_dict()["last.running_mean"], before["last.running_mean"])


def test_a_run_with_users_of_one_image_needs_the_running_statistics() -> None:
    labels = SingleLabels(np.array([0, 1, 0, 1]), ("a", "b"))
    population = Population.from_arrays(np.zeros((4, 8, 8, 3), np.uint8), labels, np.array([0, 0, 0, 1]))
    algorithm = fedavg(cohort_size=2, batch_size=3)
    with pytest.raises(ValueError, match=r"set model\.single_image=running"):
        train(population, build_model(Network(), 2), algorithm, rounds=1)
    train(population, build_model(Network(), 2, single_image="running"), algorithm, rounds=1, engine="reference")
