"""Norms: frozen ones keep the function, group ones divide the channels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from manyeyes.models import (
    FrozenBatchNorm2d,
    build,
    freeze_norms,
    group_count,
    group_norms,
)


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm's: the norm also drops out and activates."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.drop(super().forward(x)))
        return y


class Odd(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lived(module: nn.Module) -> nn.Module:
    """The module with the norms of a trained one: none of their numbers is 0 or 1."""
    g = chance(1)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_(generator=g)
            part.running_var.uniform_(0.5, 2.0, generator=g)
            nn.init.normal_(part.weight, generator=g)
            nn.init.normal_(part.bias, generator=g)
    return module


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [nn.BatchNorm2d, BatchNormAct2d])
def test_freezing_keeps_the_function_of_eval_mode_bit_for_bit(make: Callable[[int], nn.Module], training: bool) -> None:
    model = lived(nn.Sequential(nn.Conv2d(3, 12, 3), make(12), nn.Conv2d(12, 4, 3), nn.BatchNorm2d(4, eps=1e-3)))
    x = torch.randn(5, 3, 9, 9, generator=chance())
    expected = model.eval()(x)
    assert torch.equal(freeze_norms(model).train(training)(x), expected)


def test_frozen_norm_equals_its_equation() -> None:
    norm = freeze_norms(lived(nn.BatchNorm2d(3)))
    assert isinstance(norm, FrozenBatchNorm2d)
    assert norm.weight is not None
    assert norm.bias is not None
    x = torch.randn(2, 3, 4, 4, generator=chance())
    mean, var, weight, bias = (v.view(3, 1, 1) for v in (norm.running_mean, norm.running_var, norm.weight, norm.bias))
    torch.testing.assert_close(norm(x), weight * (x - mean) / (var + 1e-5).sqrt() + bias)


def test_freezing_keeps_a_whole_resnet() -> None:
    model = lived(build("resnet18", 10, norm="batch")).eval()
    x = torch.randn(2, 3, 32, 32, generator=chance())
    expected = model(x)
    assert torch.equal(freeze_norms(model).train()(x), expected)


def test_freezing_keeps_the_keys_but_for_the_counter() -> None:
    frozen = freeze_norms(build("resnet18", 10, norm="batch"))
    assert list(frozen.state_dict()) == list(build("resnet18", 10, norm="frozen_batch").state_dict())


def test_frozen_statistics_stay_and_scale_and_bias_learn() -> None:
    norm = freeze_norms(lived(nn.BatchNorm2d(3))).train()
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        norm(torch.randn(4, 3, 5, 5, generator=chance())).square().sum().backward()
        optimizer.step()
    moved = {key for key, value in norm.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == {"weight", "bias"}


def test_freezing_a_shared_norm_keeps_it_shared() -> None:
    shared = nn.BatchNorm2d(3)
    model = freeze_norms(nn.Sequential(shared, nn.ReLU(), shared))
    assert model.get_submodule("0") is model.get_submodule("2")


def test_freezing_keeps_a_norm_without_scale() -> None:
    norm = nn.BatchNorm2d(3, affine=False).eval()
    norm.running_mean = torch.tensor([1.0, 2.0, 3.0])
    x = torch.randn(2, 3, 4, 4, generator=chance())
    expected = norm(x)
    assert torch.equal(freeze_norms(norm)(x), expected)


def test_norm_without_statistics_is_refused_and_nothing_changes() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="'1' keeps no running statistics"):
        freeze_norms(model)
    assert type(model[0]) is nn.BatchNorm2d


def test_norm_of_unknown_forward_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'1' is a Odd"):
        group_norms(nn.Sequential(nn.ReLU(), Odd(4)), 2)


@given(channels=st.integers(1, 2048), wanted=st.integers(1, 64))
def test_group_count_is_the_largest_divisor_within_the_wish(channels: int, wanted: int) -> None:
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    assert group_count(channels, wanted) == max(n for n in divisors if n <= wanted)


@pytest.mark.parametrize(("channels", "wanted", "count"), [(64, 32, 32), (16, 32, 16), (48, 32, 24), (7, 4, 1)])
def test_group_count_by_hand(channels: int, wanted: int, count: int) -> None:
    assert group_count(channels, wanted) == count


def test_less_than_one_group_is_refused() -> None:
    with pytest.raises(ValueError, match="groups is 0; give at least 1"):
        group_norms(nn.BatchNorm2d(4), 0)


def test_group_norms_replace_every_batch_norm_and_keep_scale_and_bias() -> None:
    model = lived(build("resnet18", 10, norm="batch"))
    weight = model.get_parameter("layer3.0.bn1.weight").clone()
    group_norms(model, 32)
    assert list(model.state_dict()) == list(build("resnet18", 10, norm="group").state_dict())
    assert torch.equal(model.get_parameter("layer3.0.bn1.weight"), weight)


def test_group_norm_in_place_of_an_activating_norm_still_activates() -> None:
    x = torch.randn(2, 4, 3, 3, generator=chance())
    torch.testing.assert_close(group_norms(BatchNormAct2d(4), 2)(x), F.relu(F.group_norm(x, 2)))


def test_resnet_group_norms_have_32_groups() -> None:
    assert {p.num_groups for p in build("resnet18", 10).modules() if isinstance(p, nn.GroupNorm)} == {32}


@pytest.mark.parametrize(("name", "norm"), [("resnet18", "frozen_batch"), ("mobilenet_v1", "group")])
def test_without_live_batch_norm_an_example_does_not_influence_another(name: str, norm: str) -> None:
    model = build(name, 10, norm=norm).train()
    x = torch.randn(3, 3, 32, 32, generator=chance())
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)
