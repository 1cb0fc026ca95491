"""Which engine is chosen, with how many streams, and why an engine refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.data.preprocess import FeatureDecoder
from manyeyes.engines.base import DistInfo, EngineBase
from manyeyes.engines.gpu.engine import streams_for, width_for
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.engines.select import choose_engine
from manyeyes.models import build_model
from manyeyes.models.fast.cpu import WinogradConv2d
from tests.engines.engine_runs import make_setup
from tests.engines.gpu_runs import POPULATION
from tests.engines.multiprocess_runs import NEEDS_WORKERS


def choose(name: str, module: nn.Module, num_processes: int = 1, **options: Any) -> EngineBase:
    setup = make_setup(module, POPULATION, engine=name, **options)
    return choose_engine(fedavg(), replace(setup, dist=DistInfo(0, num_processes)))


@pytest.mark.parametrize(("num_clients", "num_streams"), [(1, 1), (10, 10), (16, 16), (50, 10), (200, 8), (17, 9)])
def test_there_are_as_many_streams_as_leave_none_idle_for_long(num_clients: int, num_streams: int) -> None:
    assert streams_for(num_clients) == num_streams


@pytest.mark.parametrize(
    ("num_clients", "width"), [(1, 1), (10, 5), (31, 16), (32, 32), (50, 50), (100, 50), (1000, 63)]
)
def test_few_clients_side_by_side_are_divided_between_two_streams_and_many_are_not(
    num_clients: int, width: int
) -> None:
    assert width_for(num_clients, num_streams=min(2, num_clients)) == width


class RandomInputs(nn.Module):
    """Draws random numbers from PyTorch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(588, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(nn.functional.dropout(images, training=self.training).flatten(1))


class AsksForTheMemoryFormat(nn.Module):
    """Converts its images to a memory format, which PyTorch's vmap has no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(588, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(images.contiguous(memory_format=torch.channels_last).flatten(1))


LINEAR = build_model("linear", 5, size=14)


@pytest.mark.parametrize(
    ("name", "module", "options", "message"),
    [
        (
            "vmap",
            nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(588, 5)),
            {},
            "engine=vmap does not support a model that mixes the examples of a batch",
        ),
        ("cuda_graphs", RandomInputs(), {}, "engine=cuda_graphs does not support a model that draws random numbers"),
        (
            "vmap",
            AsksForTheMemoryFormat(),
            {},
            r"engine=vmap does not support a model that torch.func.vmap cannot vectorize \(NYI: querying is_contiguous",
        ),
        ("quantum", LINEAR, {}, "Unknown engine 'quantum': choose auto, reference, "),
        ("refrence", LINEAR, {}, "Unknown engine 'refrence'.*reference"),
        ("cuda_graphs", LINEAR, {"precision": "tf32"}, "engine.precision=tf32 needs a GPU"),
        ("cuda_graphs", LINEAR, {"precision": "float16"}, "choose auto, float32, tf32, bf16"),
    ],
)
def test_an_engine_that_does_not_support_the_training_is_refused_with_the_reason(
    name: str, module: nn.Module, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choose(name, module, **options)


@NEEDS_WORKERS
@pytest.mark.parametrize("options", [{}, {"precision": "bf16"}])
@pytest.mark.parametrize("module", [LINEAR, RandomInputs()], ids=["linear", "random"])
def test_auto_chooses_multiprocess_on_a_cpu(module: nn.Module, options: dict[str, Any]) -> None:
    assert choose("auto", module, **options).name == "multiprocess"


@NEEDS_WORKERS
@pytest.mark.parametrize(
    ("cohort_size", "num_values", "expected"),
    [(10, 1280, "reference"), (10, 128_000, "multiprocess"), (100, 1280, "multiprocess")],
)
def test_auto_trains_a_small_head_of_few_clients_on_features_without_workers(
    cohort_size: int, num_values: int, expected: str
) -> None:
    setup = make_setup(nn.Linear(num_values, 5), POPULATION, engine="auto")
    setup = replace(setup, preprocess=FeatureDecoder((num_values,)), cohort_size=cohort_size)
    assert choose_engine(fedavg(), setup).name == expected


@pytest.mark.parametrize(("name", "layer"), [("auto", WinogradConv2d), ("reference", nn.Conv2d)])
def test_each_process_of_torchrun_gets_the_layers_of_a_worker_unless_reference_is_requested(
    name: str, layer: type[nn.Module]
) -> None:
    engine = choose(name, build_model("lenet", 5, size=14), num_processes=2)
    assert type(engine) is ReferenceEngine
    assert type(engine.model.module.get_submodule("conv2")) is layer


def test_a_class_that_is_no_engine_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine=pathlib:Path is not an engine: derive it from .*EngineBase"):
        choose("pathlib:Path", LINEAR)
