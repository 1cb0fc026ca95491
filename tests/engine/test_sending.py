"""Packed and compared updates on every engine: the reference's, or a sentence; and a run that owes goes on exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.algorithm import Algorithm, State
from manyeyes.algorithms import fedavg, fedper
from manyeyes.data.augment import Augment
from manyeyes.engine.choice import Means, choose_engine
from manyeyes.engine.ranks import Ranks
from manyeyes.engine.reference import Reference
from manyeyes.models import build
from manyeyes.models.flat import FlatModel
from manyeyes.parts import BF16, SGD, Equally, Everyone, Int8, Krum, Median, Poisson, TopK
from manyeyes.population import Population, SingleLabels
from manyeyes.round import play_round, start
from manyeyes.run.events import read
from manyeyes.run.training import train
from manyeyes.work import ClientStore, Engine
from tests.engine.rank_games import NEEDS_WORKERS

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (90, 8, 8, 3), np.uint8)
PEOPLE = Population.of(IMAGES, SingleLabels(RNG.integers(0, 3, 90), tuple("abc")), RNG.integers(0, 9, 90))
FEDAVG = replace(fedavg(batch=4, lr=0.1), cohort=Everyone(), weigh=Equally())
WORK: dict[str, Algorithm] = {
    "bf16": replace(FEDAVG, compress=BF16()),
    "int8": replace(FEDAVG, compress=Int8(100)),
    "topk": replace(FEDAVG, compress=TopK(0.1)),
    "topk of personal": replace(fedper(layers=1, batch=4), cohort=Everyone(), compress=TopK(0.1)),
    "median": replace(FEDAVG, aggregate=Median()),
    "krum of packed": replace(FEDAVG, aggregate=Krum(1, chosen=3), compress=Int8()),
    "median of chance": replace(FEDAVG, cohort=Poisson(4), aggregate=Median()),
}


def model() -> FlatModel:
    return FlatModel(build("lenet", 3, size=8, width=4, seed=0))


def game(algorithm: Algorithm, engine: Engine, rounds: int = 3) -> tuple[State, ClientStore]:
    flat, clients = model(), dict[int, Any]()
    state = start(algorithm, flat.read(), flat.trained)
    for _ in range(rounds):
        state, _ = play_round(algorithm, state, PEOPLE, engine, clients, seed=0)
    return state, clients


@NEEDS_WORKERS
@pytest.mark.parametrize("name", WORK)
def test_workers_send_what_the_reference_sends(name: str) -> None:
    expected, owed = game(WORK[name], Reference(model(), PEOPLE, Augment(), CPU))
    with Ranks(model(), PEOPLE, Augment(), CPU, 2) as engine:
        found, owing = game(WORK[name], engine)
    moved = torch.linalg.vector_norm(expected.weights - model().read())
    # A number that lies between two steps may be rounded another way when the sums of the round before differ.
    assert torch.linalg.vector_norm(found.weights - expected.weights) <= (1e-5 if "8" not in name else 2e-2) * moved
    assert owing.keys() == owed.keys()
    assert all(owing[key].keys() == kept.keys() for key, kept in owed.items())


@pytest.mark.parametrize("engine", ["vector", "lanes"])
def test_engines_that_only_sum_say_so(engine: str) -> None:
    with pytest.raises(ValueError, match=f"engine {engine} cannot do this: it adds updates up where they are made"):
        choose_engine(engine, model(), PEOPLE, Augment(), CPU, Means(apart=True))


def test_ranks_is_passed_over_where_workers_cannot_be_sent_a_part() -> None:
    @dataclass(frozen=True)
    class Mine(SGD):
        pass

    means = Means(sent=(Mine(0.1),))
    assert isinstance(choose_engine("auto", model(), PEOPLE, Augment(), CPU, means), Reference)
    with pytest.raises(ValueError, match=r"ranks cannot do this: .* cannot be sent .*; choose another, or auto"):
        choose_engine("ranks", model(), PEOPLE, Augment(), CPU, means)
    algorithm = replace(FEDAVG, local=Mine(0.1))
    assert len(train(PEOPLE, "linear", algorithm, rounds=1, progress=False).events) == 2  # a run finds it out


def test_auto_takes_an_engine_that_can() -> None:
    assert isinstance(choose_engine("auto", model(), PEOPLE, Augment(), CPU, Means(apart=True)), Ranks | Reference)


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
        event = read(tmp_path / name / "metrics.jsonl")[1]
        assert (event["bytes_up"], event["bytes_down"]) == (4 * up, 4 * 4 * numbers)
    assert command("run", *tiny, "rounds=1", "algorithm=centralised", "folder=one").code == 0
    assert "bytes_up" not in read(tmp_path / "one" / "metrics.jsonl")[1]


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
