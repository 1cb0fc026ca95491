"""Which engine is chosen, with how many lanes, and what one that cannot do the work says."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.engines.select import streams_for, width_for
from manyeyes.models import build_model
from manyeyes.models.fast.cpu import WinogradConv2d
from tests.engines.gpu_runs import choose


@pytest.mark.parametrize(("clients", "count"), [(1, 1), (10, 10), (16, 16), (50, 10), (200, 8), (17, 9)])
def test_lanes_are_chosen_so_that_none_is_idle_for_long(clients: int, count: int) -> None:
    assert streams_for(clients) == count


@pytest.mark.parametrize(("clients", "width"), [(1, 1), (10, 5), (31, 16), (32, 32), (50, 50), (100, 50), (1000, 63)])
def test_few_clients_side_by_side_are_divided_between_two_lanes_and_many_are_not(clients: int, width: int) -> None:
    assert width_for(clients, lanes=min(2, clients)) == width


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(588, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(nn.functional.dropout(images, training=self.training).flatten(1))


@pytest.mark.parametrize(
    ("name", "module", "means", "reason"),
    [
        ("vmap", build_model("resnet18", 5, norm="batch"), {}, "would count the padding"),
        ("cuda_graphs", Drawing(), {}, "draws random numbers of its own"),
        (
            "quantum",
            build_model("linear", 5, size=14),
            {},
            "engine 'quantum' is unknown: choose auto or reference, ranks",
        ),
        ("cuda_graphs", build_model("linear", 5, size=14), {"precision": "tf32"}, "is one of GPUs"),
        (
            "cuda_graphs",
            build_model("linear", 5, size=14),
            {"precision": "float16"},
            "choose auto, float32, tf32, bf16",
        ),
    ],
)
def test_what_an_engine_cannot_do_it_says(name: str, module: nn.Module, means: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        choose(name, module, **means)


def test_auto_takes_the_next_best() -> None:
    linear = build_model("linear", 5, size=14)
    assert isinstance(choose("auto", linear), MultiprocessEngine)
    assert isinstance(choose("auto", linear, precision="bf16"), MultiprocessEngine)
    assert isinstance(choose("auto", Drawing()), MultiprocessEngine)


@pytest.mark.parametrize(("name", "layer"), [("auto", WinogradConv2d), ("reference", nn.Conv2d)])
def test_each_of_several_processes_trains_as_a_worker_does_unless_the_reference_is_asked_for(
    name: str, layer: type[nn.Module]
) -> None:
    engine = choose(name, build_model("lenet", 5, size=14), processes=2)
    assert isinstance(engine, ReferenceEngine)
    assert type(engine.model.module.get_submodule("conv2")) is layer
