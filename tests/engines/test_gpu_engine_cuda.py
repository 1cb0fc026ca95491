"""The GPU engines on a GPU equal the reference there, repeat, resume and evaluate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg
from manyeyes.components import Centralized
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import DivergenceError, RoundMetrics
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.images import load_to_device
from manyeyes.engines.select import choose_engine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train
from tests.engines.engine_runs import initial_state, make_setup, relative_error, run_rounds, with_all_clients
from tests.engines.test_corrections import ClientFedDyn
from tests.engines.test_gpu_engine import make_algorithms
from tests.engines.test_gpu_engine_models import personal_algorithm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
AUGMENT = Preprocess(crop=28, pad=2, flip_horizontal=True)
ALGORITHMS = {
    **make_algorithms(virtual_client_size=16),
    "client state only": replace(fedavg(batch_size=8, lr=0.05), correction=ClientFedDyn(0.1)),
}
COMPILED = {"precision": "float32", "compile": True}


@pytest.fixture(scope="module")
def population() -> Population:
    """Return twelve users with one to forty images each."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(12), [40, 25, 17, 16, 9, 8, 5, 3, 2, 1, 1, 1])
    images = rng.integers(0, 256, (len(users), 32, 32, 3), np.uint8)
    return Population.from_arrays(images, SingleLabels(rng.integers(0, 5, len(users)), tuple("abcde")), users)


def lenet(num_classes: int = 5) -> nn.Module:
    return build_model("lenet", num_classes, size=28, width=8)


def train_on(
    engine_name: str,
    population: Population,
    module: nn.Module,
    algorithm: Algorithm,
    num_rounds: int = 2,
    **options: Any,
) -> tuple[Tensor, RoundMetrics]:
    """Return the update of all rounds, and the metrics of the last one; by default in float32 and uncompiled."""
    setup = make_setup(module, population, AUGMENT, CUDA, engine=engine_name, **options)
    first = initial_state(algorithm, setup.model)
    with choose_engine(algorithm, setup) as engine:
        state, _, metrics = run_rounds(algorithm, engine, population, first, num_rounds, seed=3)
    return first.weights - state.weights, metrics


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_rounds_of_every_algorithm_equal_the_references(population: Population, engine: str, name: str) -> None:
    algorithm = with_all_clients(ALGORITHMS[name])
    on_device = load_to_device(population.pooled() if isinstance(algorithm.sampler, Centralized) else population, CUDA)
    expected, expected_metrics = train_on("reference", on_device, lenet(), algorithm)
    actual, metrics = train_on(engine, on_device, lenet(), algorithm)
    # rounding grows from step to step; a wrong formula is off by far more
    assert relative_error(actual, expected) < 1e-3
    assert metrics.train_loss == pytest.approx(expected_metrics.train_loss, rel=1e-4)
    assert metrics.update_norm == pytest.approx(expected_metrics.update_norm, rel=1e-3)


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-3), ("tf32", 0.3), ("bf16", 0.5)])
def test_compiled_steps_of_each_precision(population: Population, engine: str, precision: str, bound: float) -> None:
    """Rounding decides which pixel of a pool is the largest: compiling may add little to the error."""
    algorithm, on_device = with_all_clients(fedavg(batch_size=8, lr=0.05)), load_to_device(population, CUDA)
    expected, _ = train_on("reference", on_device, lenet(), algorithm)
    plain, _ = train_on(engine, on_device, lenet(), algorithm, precision=precision)
    actual, _ = train_on(engine, on_device, lenet(), algorithm, precision=precision, compile=True)
    assert relative_error(actual, expected) < min(bound, 2 * relative_error(plain, expected) + 1e-4)


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
def test_client_state_without_server_state_in_compiled_steps(population: Population, engine: str) -> None:
    """A cohort has new clients, which have no offset, and ones that return."""
    algorithm = replace(fedavg(cohort_size=5, batch_size=8, lr=0.05), correction=ClientFedDyn(0.1))
    module, on_device = build_model("linear", 5, size=28), load_to_device(population, CUDA)
    expected, _ = train_on("reference", on_device, module, algorithm, num_rounds=4)
    actual, _ = train_on(engine, on_device, module, algorithm, num_rounds=4, **COMPILED)
    assert relative_error(actual, expected) < 1e-4


@pytest.mark.parametrize(("norm", "compile"), [("group", False), ("group", True), ("frozen", False), ("live", True)])
def test_deep_models_with_every_norm(population: Population, norm: str, compile: bool) -> None:
    algorithm = with_all_clients(fedavg(batch_size=64, lr=0.01))  # one step per client: rounding grows through ReLUs
    module = build_model("resnet18", 5, norm=norm)
    largest = population.filter(population.owners(np.arange(len(population))) < 4)  # one image has no variance
    on_device = load_to_device(largest, CUDA)
    expected, _ = train_on("reference", on_device, module, algorithm, num_rounds=1)
    actual, _ = train_on("cuda_graphs", on_device, module, algorithm, num_rounds=1, compile=compile)
    assert relative_error(actual, expected) < 5e-3


@pytest.mark.parametrize("name", ["fedbn", "fedrep", "ditto"])
@pytest.mark.parametrize("compile", [False, True])
def test_personal_layers_of_models_with_live_statistics(population: Population, name: str, compile: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(2704, 5))
    algorithm, on_device = with_all_clients(personal_algorithm(name)), load_to_device(population, CUDA)
    expected, _ = train_on("reference", on_device, module, algorithm)
    actual, _ = train_on("cuda_graphs", on_device, module, algorithm, compile=compile)
    assert relative_error(actual, expected) < 1e-3


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
def test_several_labels_per_image(population: Population, engine: str) -> None:
    rng = np.random.default_rng(1)
    tags = [np.flatnonzero(rng.random(6) < 0.3).tolist() for _ in range(len(population))]
    multi = replace(population, labels=MultiLabels.from_lists(tags, tuple("abcdef")))
    algorithm, on_device = with_all_clients(fedavg(batch_size=8, lr=0.05)), load_to_device(multi, CUDA)
    expected, _ = train_on("reference", on_device, lenet(6), algorithm)
    actual, _ = train_on(engine, on_device, lenet(6), algorithm)
    assert relative_error(actual, expected) < 1e-4


def test_streamed_images_train_as_those_on_the_device(population: Population, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.engines.gpu.buffers.IMAGE_BYTES", 2**17)  # a few steps per chunk
    algorithm = with_all_clients(fedavg(batch_size=8, lr=0.05))
    streamed, resident = (
        train_on("cuda_graphs", images, lenet(), algorithm)[0]
        for images in (population, load_to_device(population, CUDA))
    )
    assert torch.equal(streamed, resident)


def test_a_run_repeats_bit_for_bit_and_resumes_exactly(population: Population, tmp_path: Path) -> None:
    algorithm = NAMED_ALGORITHMS["scaffold"](cohort_size=5, batch_size=8)

    def run(folder: str, rounds: int, resume: bool = False) -> Any:
        return train(
            population,
            "lenet",
            algorithm,
            test=population,
            rounds=rounds,
            folder=tmp_path / folder,
            resume=resume,
            engine="cuda_graphs",
            device="cuda",
            precision="bf16",
            checkpoint_seconds=0,
        )

    straight = run("straight", 6)
    run("resumed", 3)
    resumed = run("resumed", 6, resume=True)
    assert torch.equal(FlatModel(straight.model).read(), FlatModel(resumed.model).read())
    last_losses = [[e["loss"] for e in end.events if "loss" in e][-1] for end in (straight, resumed)]
    assert last_losses[0] == last_losses[1]


def test_evaluation_is_the_same_compiled_and_captured(population: Population) -> None:
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (2500, 32, 32, 3), np.uint8)
    test = Population.from_arrays(
        images, SingleLabels(rng.integers(0, 5, 2500), tuple("abcde")), rng.integers(0, 9, 2500)
    )

    def losses(engine: str, precision: str) -> list[float]:
        module = build_model("lenet", 5, size=32)
        algorithm = fedavg(cohort_size=4, batch_size=8)
        result = train(
            population, module, algorithm, rounds=1, test=test, device="cuda", engine=engine, precision=precision
        )
        return [event["loss"] for event in result.events]

    expected = losses("reference", "float32")
    assert losses("cuda_graphs", "float32") == pytest.approx(expected, rel=1e-5)
    assert losses("cuda_graphs", "bf16") == pytest.approx(expected, rel=1e-2)


def test_a_round_without_a_finite_update_raises(population: Population) -> None:
    algorithm = with_all_clients(fedavg(batch_size=8, lr=3e38))
    setup = make_setup(lenet(), load_to_device(population, CUDA), AUGMENT, CUDA, engine="cuda_graphs")
    with (
        choose_engine(algorithm, setup) as engine,
        pytest.raises(DivergenceError, match="no client of round 1 returned a finite update"),
    ):
        run_round(algorithm, initial_state(algorithm, setup.model), setup.population, engine, {}, 0)
