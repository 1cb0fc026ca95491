"""Packed and compared updates on every engine: the reference's, or a sentence; and a run that owes goes on exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.algorithms import fedavg, fedper
from manyeyes.components import BF16, SGD, AllClients, Int8, Krum, Median, PoissonSampler, TopK, WeightUniformly
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import MutableClientStates, ServerState, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.engines.select import EngineOptions, choose_engine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.run_folder import read_events
from manyeyes.training.train import train
from tests.engines.multiprocess_runs import NEEDS_WORKERS

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (90, 8, 8, 3), np.uint8)
POPULATION = Population.from_arrays(IMAGES, SingleLabels(RNG.integers(0, 3, 90), tuple("abc")), RNG.integers(0, 9, 90))
FEDAVG = replace(fedavg(batch_size=4, lr=0.1), sampler=AllClients(), client_weighting=WeightUniformly())
WORK: dict[str, Algorithm] = {
    "bf16": replace(FEDAVG, compressor=BF16()),
    "int8": replace(FEDAVG, compressor=Int8(100)),
    "topk": replace(FEDAVG, compressor=TopK(0.1)),
    "topk of personal": replace(fedper(head_layers=1, batch_size=4), sampler=AllClients(), compressor=TopK(0.1)),
    "median": replace(FEDAVG, aggregator=Median()),
    "krum of packed": replace(FEDAVG, aggregator=Krum(1, num_selected=3), compressor=Int8()),
    "median of chance": replace(FEDAVG, sampler=PoissonSampler(4), aggregator=Median()),
}


def model() -> FlatModel:
    return FlatModel(build_model("lenet", 3, size=8, width=4, seed=0))


def game(algorithm: Algorithm, engine: Engine, rounds: int = 3) -> tuple[ServerState, MutableClientStates]:
    flat, clients = model(), dict[int, Any]()
    state = init_state(algorithm, flat.read(), flat.num_trainable)
    for _ in range(rounds):
        state, _ = run_round(algorithm, state, POPULATION, engine, clients, seed=0)
    return state, clients


@NEEDS_WORKERS
@pytest.mark.parametrize("name", WORK)
def test_workers_send_what_the_reference_sends(name: str) -> None:
    expected, owed = game(WORK[name], ReferenceEngine(model(), POPULATION, Preprocess(), CPU))
    with MultiprocessEngine(model(), POPULATION, Preprocess(), CPU, 2) as engine:
        found, owing = game(WORK[name], engine)
    moved = torch.linalg.vector_norm(expected.weights - model().read())
    # A number that lies between two steps may be rounded another way when the sums of the round before differ.
    assert torch.linalg.vector_norm(found.weights - expected.weights) <= (1e-5 if "8" not in name else 2e-2) * moved
    assert owing.keys() == owed.keys()
    assert all(owing[key].keys() == kept.keys() for key, kept in owed.items())


@pytest.mark.parametrize("engine", ["vmap", "cuda_graphs"])
def test_engines_that_only_sum_say_so(engine: str) -> None:
    with pytest.raises(ValueError, match=f"engine {engine} cannot do this: it adds updates up where they are made"):
        choose_engine(engine, model(), POPULATION, Preprocess(), CPU, EngineOptions(needs_client_updates=True))


def test_ranks_is_passed_over_where_workers_cannot_be_sent_a_part() -> None:
    @dataclass(frozen=True)
    class Mine(SGD):
        pass

    means = EngineOptions(shipped_components=(Mine(0.1),))
    assert isinstance(choose_engine("auto", model(), POPULATION, Preprocess(), CPU, means), ReferenceEngine)
    with pytest.raises(ValueError, match=r"ranks cannot do this: .* cannot be sent .*; choose another, or auto"):
        choose_engine("multiprocess", model(), POPULATION, Preprocess(), CPU, means)
    algorithm = replace(FEDAVG, client_optimizer=Mine(0.1))
    assert len(train(POPULATION, "linear", algorithm, rounds=1, progress=False).events) == 2  # a run finds it out


def test_auto_takes_an_engine_that_can() -> None:
    assert isinstance(
        choose_engine("auto", model(), POPULATION, Preprocess(), CPU, EngineOptions(needs_client_updates=True)),
        MultiprocessEngine | ReferenceEngine,
    )


def test_a_run_that_owes_goes_on_exactly(tmp_path: Path, command: Callable[..., Any], tiny: tuple[str, ...]) -> None:
    words = (*tiny, "compress=topk", "compress.share=0.05", "engine=reference", "algorithm.lr=0.1")
    assert command("run", *words, "rounds=3", "folder=parts").code == 0
    assert command("run", "resume=parts", "rounds=6").code == 0
    assert command("run", *words, "rounds=6", "folder=straight").code == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("parts", "straight")]
    assert weights[0] == weights[1]


def test_a_run_tells_the_bytes_of_every_round(
    tmp_path: Path, command: Callable[..., Any], tiny: tuple[str, ...]
) -> None:
    """A linear model of 32 x 32 x 3 + 1 numbers for each of 10 classes; 4 clients a round."""
    numbers = (32 * 32 * 3 + 1) * 10
    for name, up in (("none", 4 * numbers), ("bf16", 2 * numbers), ("int8", numbers + 4 * 31), ("topk", 8 * 308)):
        assert command("run", *tiny, "rounds=1", f"compress={name}", f"folder={name}").code == 0
        event = read_events(tmp_path / name / "metrics.jsonl")[1]
        assert (event["bytes_up"], event["bytes_down"]) == (4 * up, 4 * 4 * numbers)
    assert command("run", *tiny, "rounds=1", "algorithm=centralized", "folder=one").code == 0
    assert "bytes_up" not in read_events(tmp_path / "one" / "metrics.jsonl")[1]


def test_wrong_words_are_one_sentence(command: Callable[..., Any], tiny: tuple[str, ...]) -> None:
    for words, reason in (
        (("compress=zip",), "compress 'zip' is unknown"),
        (("compress=topk", "compress.share=2"), "top-k's share is 2.0: it must be above 0 and at most 1"),
        (("aggregate=median",), "the median counts every client alike"),
        (("compress.name=zip",), "compress.name is 'zip': choose none, bf16, int8, topk"),
    ):
        found = command("run", *tiny, *words, "rounds=1")
        assert (found.code, found.err.count("\n")) == (1, 1)
        assert found.err.startswith(f"manyeyes: {reason}")
