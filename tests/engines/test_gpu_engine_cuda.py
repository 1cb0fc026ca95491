"""The fast engines on a GPU compute what the reference computes there, repeat, resume and evaluate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg
from manyeyes.components import SGD, Adam, AllClients, Centralized, MatchingLayers
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.images import load
from manyeyes.engines.select import EngineOptions, choose_engine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train
from tests.engines.gpu_runs import relative_error
from tests.engines.test_corrections import FedDyn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
AUGMENT = Preprocess(crop=28, pad=2, flip_horizontal=True)


@pytest.fixture(scope="module")
def population() -> Population:
    """Twelve population of one to forty photos."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(12), [40, 25, 17, 16, 9, 8, 5, 3, 2, 1, 1, 1])
    images = rng.integers(0, 256, (len(users), 32, 32, 3), np.uint8)
    return Population.from_arrays(images, SingleLabels(rng.integers(0, 5, len(users)), tuple("abcde")), users)


def rounds(
    population: Population, module: nn.Module, algorithm: Algorithm, name: str, means: EngineOptions, count: int = 2
) -> tuple[Tensor, Any]:
    flat = FlatModel(module.to(CUDA))
    begin = flat.read()
    engine = choose_engine(name, flat, population, AUGMENT, CUDA, means)
    state, clients = init_state(algorithm, begin, flat.num_trainable), {}
    for _ in range(count):
        state, report = run_round(algorithm, state, population, engine, clients, seed=3)
    return begin - state.weights, report


def everyone(algorithm: Algorithm) -> Algorithm:
    return algorithm if isinstance(algorithm.sampler, Centralized) else replace(algorithm, sampler=AllClients())


VARIANTS: dict[str, Algorithm] = {
    **{
        name: make(batch_size=8, lr=0.05, **({"virtual_client_size": 16} if name == "fedvc" else {}))
        for name, make in NAMED_ALGORITHMS.items()
        if name != "fedbn"
    },
    "fedrep, momentum, decay and clipping": replace(
        NAMED_ALGORITHMS["fedrep"](batch_size=8, head_epochs=2),
        client_optimizer=SGD(0.05, 0.9, 1e-3, max_grad_norm=0.5),
    ),
    "ditto, momentum that is kept": replace(
        NAMED_ALGORITHMS["ditto"](batch_size=8), client_optimizer=SGD(0.02, 0.9, persist_state=True)
    ),
    "momentum, decay and clipping": replace(
        fedavg(batch_size=8), client_optimizer=SGD(0.05, 0.9, 1e-3, max_grad_norm=0.5)
    ),
    "adam that is kept": replace(fedavg(batch_size=8), client_optimizer=Adam(1e-3, persist_state=True)),
    "personal head": replace(fedavg(batch_size=8, lr=0.05), personal_layers=MatchingLayers(("fc3.*",))),
    "personal head, scaffold": replace(
        NAMED_ALGORITHMS["scaffold"](batch_size=8, lr=0.05), personal_layers=MatchingLayers(("fc3.*",))
    ),
    "client state alone": replace(fedavg(batch_size=8, lr=0.05), correction=FedDyn(0.1)),
}


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
@pytest.mark.parametrize("name", VARIANTS)
def test_two_rounds_of_every_algorithm_equal_the_references(population: Population, engine: str, name: str) -> None:
    algorithm = everyone(VARIANTS[name])
    held = load(population.pooled() if isinstance(algorithm.sampler, Centralized) else population, CUDA)
    module = build_model("lenet", 5, size=28, width=8)
    expected, report = rounds(held, module, algorithm, "reference", EngineOptions())
    found, other = rounds(held, module, algorithm, engine, EngineOptions("float32", compile=False))
    assert (
        relative_error(found, expected) < 1e-3
    )  # rounding, which grows from step to step; a wrong formula is off by far more
    assert other.loss == pytest.approx(report.loss, rel=1e-4)
    assert other.norm == pytest.approx(report.norm, rel=1e-3)


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-3), ("tf32", 0.3), ("bf16", 0.5)])
def test_compiled_steps_of_each_precision(population: Population, engine: str, precision: str, bound: float) -> None:
    """Rounding turns over which pixel of a pool is the largest: what compiling adds to that must be little."""
    algorithm, module = everyone(fedavg(batch_size=8, lr=0.05)), build_model("lenet", 5, size=28, width=8)
    expected, _ = rounds(load(population, CUDA), module, algorithm, "reference", EngineOptions())
    plain, _ = rounds(load(population, CUDA), module, algorithm, engine, EngineOptions(precision, compile=False))
    found, _ = rounds(load(population, CUDA), module, algorithm, engine, EngineOptions(precision))
    assert relative_error(found, expected) < min(bound, 2 * relative_error(plain, expected) + 1e-4)


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
def test_client_state_alone_in_captured_and_compiled_steps(population: Population, engine: str) -> None:
    """Of a cohort of new clients and ones that return, the first have no shift."""
    algorithm, module = (
        replace(fedavg(cohort_size=5, batch_size=8, lr=0.05), correction=FedDyn(0.1)),
        build_model("linear", 5, size=28),
    )
    expected, _ = rounds(load(population, CUDA), module, algorithm, "reference", EngineOptions(), 4)
    found, _ = rounds(load(population, CUDA), module, algorithm, engine, EngineOptions("float32"), 4)
    assert relative_error(found, expected) < 1e-4


@pytest.mark.parametrize(
    ("norm", "compile"), [("group", False), ("group", True), ("frozen_batch", False), ("batch", True)]
)
def test_deep_models_with_every_norm(population: Population, norm: str, compile: bool) -> None:
    algorithm = everyone(fedavg(batch_size=64, lr=0.01))  # one step a client: beyond, rounding grows through ReLUs
    module = build_model("resnet18", 5, norm=norm)
    held = load(
        population.filter(population.owners(np.arange(len(population))) < 4), CUDA
    )  # or BatchNorm would divide by nearly 0
    expected, _ = rounds(held, module, algorithm, "reference", EngineOptions(), 1)
    found, _ = rounds(held, module, algorithm, "cuda_graphs", EngineOptions("float32", compile=compile), 1)
    assert relative_error(found, expected) < 5e-3


@pytest.mark.parametrize("name", ["fedbn", "fedrep", "ditto"])
@pytest.mark.parametrize("compile", [False, True])
def test_personal_norms_heads_and_models_with_live_statistics(population: Population, name: str, compile: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(2704, 5))
    algorithm = everyone(
        NAMED_ALGORITHMS[name](batch_size=8, lr=0.05, **({"head_epochs": 1} if name == "fedrep" else {}))
    )
    algorithm = replace(algorithm, personal_layers=MatchingLayers(("4.*",))) if name == "fedrep" else algorithm
    expected, _ = rounds(load(population, CUDA), module, algorithm, "reference", EngineOptions())
    found, _ = rounds(
        load(population, CUDA), module, algorithm, "cuda_graphs", EngineOptions("float32", compile=compile)
    )
    assert relative_error(found, expected) < 1e-3


def test_several_labels(population: Population) -> None:
    rng = np.random.default_rng(1)
    tags = [np.flatnonzero(rng.random(6) < 0.3).tolist() for _ in range(len(population))]
    several = replace(population, labels=MultiLabels.from_lists(tags, tuple("abcdef")))
    algorithm, module = everyone(fedavg(batch_size=8, lr=0.05)), build_model("lenet", 6, size=28, width=8)
    expected, _ = rounds(load(several, CUDA), module, algorithm, "reference", EngineOptions())
    for engine in ("vmap", "cuda_graphs"):
        assert (
            relative_error(
                rounds(load(several, CUDA), module, algorithm, engine, EngineOptions("float32", compile=False))[0],
                expected,
            )
            < 1e-4
        )


def test_images_that_are_streamed_train_as_those_that_are_resident(population: Population, monkeypatch: Any) -> None:
    monkeypatch.setattr("manyeyes.engines.gpu.buffers.IMAGE_BYTES", 2**17)  # a few steps a piece: many pieces a round
    algorithm, module = everyone(fedavg(batch_size=8, lr=0.05)), build_model("lenet", 5, size=28, width=8)
    means = EngineOptions("float32", compile=False)
    one, other = (
        rounds(held, module, algorithm, "cuda_graphs", means)[0] for held in (population, load(population, CUDA))
    )
    assert torch.equal(one, other)


def test_a_run_repeats_bit_for_bit_and_resumes_exactly(population: Population, tmp_path: Path) -> None:
    options: dict[str, Any] = {"test": population, "device": "cuda", "precision": "bf16", "checkpoint_seconds": 0}
    algorithm = NAMED_ALGORITHMS["scaffold"](cohort_size=5, batch_size=8)
    straight = train(population, "lenet", algorithm, rounds=6, folder=tmp_path / "a", engine="cuda_graphs", **options)
    train(population, "lenet", algorithm, rounds=3, folder=tmp_path / "b", engine="cuda_graphs", **options)
    again = train(
        population, "lenet", algorithm, rounds=6, folder=tmp_path / "b", resume=True, engine="cuda_graphs", **options
    )
    for one, other in zip(straight.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [e["loss"] for e in straight.events if "loss" in e][-1] == [e["loss"] for e in again.events if "loss" in e][
        -1
    ]


def test_evaluation_is_the_same_compiled_and_captured(population: Population) -> None:
    many = replace(population, image_indices=population.image_indices)
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (2500, 32, 32, 3), np.uint8)
    test = Population.from_arrays(
        images, SingleLabels(rng.integers(0, 5, 2500), tuple("abcde")), rng.integers(0, 9, 2500)
    )
    ends = [
        train(
            many,
            build_model("lenet", 5, size=32),
            fedavg(cohort_size=4, batch_size=8),
            rounds=1,
            test=test,
            device="cuda",
            engine=e,
            **how,
        )
        for e, how in (
            ("reference", {}),
            ("cuda_graphs", {"precision": "float32"}),
            ("cuda_graphs", {"precision": "bf16"}),
        )
    ]
    exact, fast, half = ([event["loss"] for event in end.events] for end in ends)
    assert fast == pytest.approx(exact, rel=1e-5)
    assert half == pytest.approx(exact, rel=1e-2)


def test_a_client_whose_update_is_not_finite_is_left_out(population: Population) -> None:
    algorithm, module = everyone(fedavg(batch_size=8, lr=3e38)), build_model("lenet", 5, size=28, width=8)
    held = load(population, CUDA)
    flat = FlatModel(module.to(CUDA))
    engine = choose_engine("cuda_graphs", flat, held, AUGMENT, CUDA, EngineOptions("float32", compile=False))
    with pytest.raises(RuntimeError, match="no client of round 1 returned a finite update"):
        run_round(algorithm, init_state(algorithm, flat.read(), flat.num_trainable), held, engine, {}, 0)
