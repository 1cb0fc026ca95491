"""The GPU engines compute what the reference computes; here on a CPU, where they run without streams and graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg
from manyeyes.components import SGD, Adam, Ditto, MatchingLayers
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.plan import plan_round
from manyeyes.core.state import PERSONAL_WEIGHTS
from manyeyes.engines.gpu import buffers
from manyeyes.engines.gpu.trainer import StreamTrainer
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train
from tests.engines.engine_runs import make_round_context, make_setup, relative_error, with_all_clients
from tests.engines.gpu_runs import (
    AUGMENT,
    ENGINE_PARAMS,
    ENGINES,
    POPULATION,
    assert_equals_reference,
    make_gpu_engine,
    make_population,
    train_on,
)


def make_algorithms(lr: float = 0.05, virtual_client_size: int = 12) -> dict[str, Algorithm]:
    """Return every named algorithm, and mixes of components that need more of an engine."""
    make: dict[str, Callable[..., Algorithm]] = {
        name: factory for name, factory in NAMED_ALGORITHMS.items() if name != "fedbn"
    }  # which needs a model with norms
    extra = {"fedvc": {"virtual_client_size": virtual_client_size}, "fedrep": {"head_epochs": 2}}
    personal_head = MatchingLayers(("fc3.*",))
    clipped = SGD(0.02, 0.9, 1e-3, max_grad_norm=0.5)
    persistent = SGD(0.02, 0.9, persist_state=True)
    return {
        **{name: factory(batch_size=8, lr=lr, **extra.get(name, {})) for name, factory in make.items()},
        "fedrep, momentum, decay and clipping": replace(
            make["fedrep"](batch_size=8, head_epochs=2), client_optimizer=clipped
        ),
        "ditto, persistent momentum": replace(make["ditto"](batch_size=8), client_optimizer=persistent),
        "ditto, scaffold": replace(make["scaffold"](batch_size=8, lr=lr), personal_model=Ditto(0.5)),
        "momentum, decay and clipping": replace(fedavg(batch_size=8, epochs=2), client_optimizer=clipped),
        "persistent momentum": replace(fedavg(batch_size=8), client_optimizer=persistent),
        "persistent adam": replace(fedavg(batch_size=8), client_optimizer=Adam(1e-3, persist_state=True)),
        "personal head": replace(fedavg(batch_size=8, lr=lr), personal_layers=personal_head),
        "personal head, fedprox": replace(make["fedprox"](batch_size=8, lr=lr), personal_layers=personal_head),
        "personal head, scaffold": replace(make["scaffold"](batch_size=8, lr=lr), personal_layers=personal_head),
        "full batches": fedavg(batch_size=64, lr=lr),
    }


ALGORITHMS = make_algorithms()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep, momentum, decay and clipping", "ditto"])
def test_three_rounds_equal_the_references(name: str) -> None:
    assert_equals_reference("both", ALGORITHMS[name])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_rounds_of_every_algorithm_equal_the_references(engine: str, name: str) -> None:
    assert_equals_reference(engine, ALGORITHMS[name])


@pytest.mark.parametrize("engine", ENGINE_PARAMS)
def test_several_labels_and_dropout(engine: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(400, 5)
    )
    assert_equals_reference(engine, fedavg(batch_size=8, lr=0.1), module, make_population(multi=True))


@pytest.mark.slow
def test_alternating_contexts_give_the_results_of_each_alone() -> None:
    """As with an evaluation after fine-tuning between two rounds."""
    algorithm = with_all_clients(ALGORITHMS["personal head"])
    model = FlatModel(build_model("lenet", 5, size=12, width=4))
    setup = make_setup(model, POPULATION, AUGMENT)
    engines: list[Engine] = [ReferenceEngine(setup), make_gpu_engine(setup, "both")]
    plans = [plan_round(algorithm, POPULATION, seed, 0, AUGMENT.num_uniforms) for seed in (3, 4)]
    for patterns in (("fc3.*",), ("*",), ("fc3.*",)):
        for plan in plans:
            expected, actual = (
                engine.train(
                    model.read(),
                    plan,
                    make_round_context(algorithm, 0.05, personal_mask=engine.personal_mask(MatchingLayers(patterns))),
                    {},
                )
                for engine in engines
            )
            torch.testing.assert_close(actual.update_W, expected.update_W, rtol=1e-4, atol=1e-5)
            for client_id, state in expected.client_states.items():
                personal = actual.client_states[client_id][PERSONAL_WEIGHTS]
                torch.testing.assert_close(personal, state[PERSONAL_WEIGHTS], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["reference", *ENGINE_PARAMS])
def test_bf16_is_close_to_float32(engine: str) -> None:
    expected, _, _ = train_on("reference", fedavg(batch_size=8, lr=0.05))
    actual, _, _ = train_on(engine, fedavg(batch_size=8, lr=0.05), precision="bf16")
    assert 1e-5 < relative_error(actual, expected) < 0.1


@pytest.mark.parametrize("engine", ENGINE_PARAMS)
def test_no_update_is_longer_than_the_clipping_norm(engine: str) -> None:
    algorithm = with_all_clients(fedavg(batch_size=8, lr=0.05))
    model = FlatModel(build_model("lenet", 5, size=12, width=4))
    setup, plan = make_setup(model, POPULATION, AUGMENT), plan_round(algorithm, POPULATION, 3, 0, AUGMENT.num_uniforms)
    reference, gpu_engine = ReferenceEngine(setup), make_gpu_engine(setup, engine)
    unclipped = reference.train(model.read(), plan, make_round_context(algorithm, 0.05), {})
    clipping_norm = float(np.median(unclipped.norm_K))
    context = make_round_context(algorithm, 0.05, clipping_norm=clipping_norm)
    expected, actual = (each.train(model.read(), plan, context, {}) for each in (reference, gpu_engine))
    torch.testing.assert_close(actual.update_W, expected.update_W, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual.norm_K, unclipped.norm_K, rtol=1e-5)  # norms before clipping
    for client, norm in zip(plan.clients, unclipped.norm_K, strict=True):
        sent = gpu_engine.train(model.read(), replace(plan, clients=(client,)), context, {}).update_W / client.weight
        assert float(sent.norm()) == pytest.approx(min(clipping_norm, norm), rel=1e-5)


class InfiniteForWhiteImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(432, 5)

    def forward(self, images: Tensor) -> Tensor:
        is_white = images.amax((1, 2, 3), keepdim=True) > 1.99
        return self.fc(torch.where(is_white, images * torch.inf, images).flatten(1))


@pytest.mark.parametrize("engine", ENGINE_PARAMS)
def test_a_client_whose_update_is_not_finite_is_rejected(engine: str) -> None:
    """Only user 3 has white images."""
    torch.manual_seed(0)
    pixels = np.random.default_rng(1).integers(0, 200, POPULATION.images.shape, np.uint8)
    pixels[POPULATION.image_indices[POPULATION.examples(3)]] = 255
    population, algorithm = replace(POPULATION, images=pixels), fedavg(batch_size=8, lr=0.05)
    module = InfiniteForWhiteImages()
    expected, expected_metrics, _ = train_on("reference", algorithm, module, population)
    actual, metrics, _ = train_on(engine, algorithm, module, population)
    assert metrics.rejected_clients == expected_metrics.rejected_clients == ("3",)
    assert relative_error(actual, expected) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINE_PARAMS)
def test_a_round_in_many_chunks_is_the_same(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _, _ = train_on(engine, ALGORITHMS["momentum, decay and clipping"])
    monkeypatch.setattr(buffers, "IMAGE_BYTES", 1)  # one step per chunk
    actual, _, _ = train_on(engine, ALGORITHMS["momentum, decay and clipping"])
    assert torch.equal(actual, expected)


def test_a_run_in_many_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = fedavg(cohort_size=4, batch_size=8, epochs=2)

    def final_weights() -> Tensor:
        module = build_model("linear", 5, size=14, seed=0)
        run = train(POPULATION, module, algorithm, rounds=4, engine="cuda_graphs", num_streams=2)
        return FlatModel(run.model).read()

    expected = final_weights()
    monkeypatch.setattr(buffers, "IMAGE_BYTES", 1)
    assert torch.equal(final_weights(), expected)


def test_the_next_round_is_uploaded_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    upload, gather = buffers.PlanBuffers.upload, StreamTrainer._gather

    def record_upload(self: buffers.PlanBuffers, chunk: buffers.PlanChunk, half: int) -> None:
        events.append(half)
        upload(self, chunk, half)

    def record_gather(*args: Any) -> Any:
        events.append("gather")
        return gather(*args)

    monkeypatch.setattr(buffers.PlanBuffers, "upload", record_upload)
    monkeypatch.setattr(StreamTrainer, "_gather", record_gather)
    population = replace(POPULATION, offsets=np.array([0, 32, 64]), user_ids=np.arange(2), user_names=None)
    module, algorithm = build_model("linear", 5, size=14), fedavg(cohort_size=2, batch_size=8)
    train(population, module, algorithm, rounds=3, engine="cuda_graphs")
    # half 0 twice in round 1: once while the steps are captured, then to train
    assert events == [0, 0, 1, "gather", 0, "gather", "gather"]


def test_runs_repeat_bit_for_bit_and_hardly_depend_on_the_number_of_streams() -> None:
    algorithm = fedavg(cohort_size=4, batch_size=8)

    def final_weights(num_streams: int) -> Tensor:
        module = build_model("lenet", 5, size=14, width=4)
        run = train(POPULATION, module, algorithm, rounds=4, engine="cuda_graphs", num_streams=num_streams)
        return FlatModel(run.model).read()

    first, second, with_more_streams = map(final_weights, (2, 2, 3))
    assert torch.equal(first, second)
    assert relative_error(with_more_streams, first) < 1e-6
