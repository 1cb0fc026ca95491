"""The ranks engine computes what the reference computes, and repeats bit for bit."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg, scaffold
from manyeyes.components import SGD, AllClients, Centralized, MatchingLayers
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.fast.cpu import OneDNNLinear, WinogradConv2d, optimize_for_cpu
from manyeyes.models.flat import FlatModel
from tests.engines.multiprocess_runs import (
    AUGMENT,
    CPU,
    FEDAVG,
    IMAGES,
    NEEDS_WORKERS,
    POPULATION,
    assert_same_game,
    begin,
    game,
    lenet,
    linear,
    one_round,
    pids,
    ranks,
)

pytestmark = NEEDS_WORKERS


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_two_rounds_equal_those_of_the_reference(name: str, workers: int) -> None:
    algorithm = NAMED_ALGORITHMS[name](batch_size=4, lr=0.05, **({"virtual_client_size": 8} if name == "fedvc" else {}))
    pooled = isinstance(algorithm.sampler, Centralized)
    population = POPULATION.pooled() if pooled else POPULATION
    algorithm = algorithm if pooled else replace(algorithm, sampler=AllClients())
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3))
    assert_same_game(algorithm, normed if name == "fedbn" else lenet(), population, workers)


def test_personal_layers_stay_with_their_clients() -> None:
    assert_same_game(replace(FEDAVG, personal_layers=MatchingLayers(("fc3.*",))), lenet())


def test_state_of_the_optimiser_stays_with_its_client() -> None:
    assert_same_game(replace(FEDAVG, client_optimizer=SGD(0.05, momentum=0.9, persist_state=True)), lenet())


def test_live_batch_norm_is_averaged() -> None:
    torch.manual_seed(0)
    assert_same_game(FEDAVG, nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)))


@pytest.mark.parametrize("name", ["fedavg", "mimelite"])
def test_bf16_is_that_of_the_reference(name: str) -> None:
    normed = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    assert_same_game(
        replace(NAMED_ALGORITHMS[name](batch_size=4, lr=0.05), sampler=AllClients()), normed, precision="bf16"
    )


def test_convolutions_of_fewer_products_agree_with_those_of_the_reference() -> None:
    torch.manual_seed(0)
    many = nn.Sequential(nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 5, padding=2), nn.Tanh())
    wide = nn.Sequential(many, nn.Flatten(), nn.Linear(4096, 3))
    wide.channels_last = ("cpu",)  # type: ignore[assignment]
    assert any(isinstance(layer, WinogradConv2d) for layer in optimize_for_cpu(wide).modules())
    assert_same_game(replace(fedavg(batch_size=8, lr=0.05), sampler=AllClients()), wide)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")
def test_products_by_onednn_agree_with_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.models.fast.cpu.mkl_is_slow", lambda: True)
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(192, 1400), nn.Tanh(), nn.Linear(1400, 3))
    assert any(isinstance(layer, OneDNNLinear) for layer in optimize_for_cpu(wide).modules())
    assert_same_game(replace(fedavg(batch_size=8, lr=0.05), sampler=AllClients()), wide)


def test_dropout_is_that_of_the_client() -> None:
    torch.manual_seed(0)
    assert_same_game(FEDAVG, nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3)))


def test_statistics_come_in_the_order_of_the_plan() -> None:
    with ranks(lenet(), 3) as engine:
        found = one_round(engine, lenet())
    expected = one_round(ReferenceEngine(FlatModel(lenet()), POPULATION, AUGMENT, CPU), lenet())
    np.testing.assert_allclose(found.loss_K, expected.loss_K, rtol=1e-6)
    np.testing.assert_allclose(found.norm_K, expected.norm_K, rtol=1e-6)
    assert found.accepted_K.tolist() == expected.accepted_K.tolist() == [True] * 7
    assert found.uploads_P is None


def test_a_game_repeats_bit_for_bit() -> None:
    algorithm = replace(scaffold(batch_size=4), sampler=AllClients())
    ends = []
    for _ in range(2):
        with ranks(lenet()) as engine:
            ends.append(game(algorithm, engine, begin(algorithm, lenet()), 3)[0].weights)
    assert torch.equal(*ends)


def test_other_processes_go_on_where_some_have_stopped_bit_for_bit() -> None:
    algorithm = replace(scaffold(batch_size=4), sampler=AllClients())
    with ranks(lenet()) as engine:
        straight, _ = game(algorithm, engine, begin(algorithm, lenet()), 4)
    with ranks(lenet()) as engine:
        state, clients = game(algorithm, engine, begin(algorithm, lenet()), 2)
    with ranks(lenet()) as engine:
        resumed, _ = game(algorithm, engine, state, 2, clients=clients)
    assert torch.equal(straight.weights, resumed.weights)


def test_no_more_processes_are_started_than_there_are_clients() -> None:
    assert_same_game(replace(fedavg(batch_size=4), sampler=AllClients()), linear(), workers=20)
    with ranks(linear(), 20) as engine:
        one_round(engine, linear())
        assert len(pids(engine)) == 7


def test_a_process_has_the_threads_that_it_needs_after_a_parent_that_had_more() -> None:
    torch.set_num_threads(2)
    try:
        torch.ones(2**20, requires_grad=True).square().sum().backward()
        with ranks(lenet()) as engine:
            one_round(engine, lenet())
            counts = [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in pids(engine)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert counts == [2, 2]  # that which works, and that which looks after the parent


class Flawed(nn.Module):
    """Gives a number that is none for images of user 3, whom it knows by a white corner."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, images: Tensor) -> Tensor:
        white = (images[:, :, 0, 0] > 1.99).all(1)
        return self.inner(images) + torch.where(white, torch.nan, 0.0)[:, None]


def test_a_client_that_is_not_finite_is_left_out_as_in_the_reference() -> None:
    pixels = IMAGES.copy()
    pixels[:, 0, 0] = 7
    pixels[POPULATION.image_indices[POPULATION.examples(3)], 0, 0] = 255
    population, algorithm = replace(POPULATION, images=pixels), replace(scaffold(batch_size=4), sampler=AllClients())
    expected = one_round(
        ReferenceEngine(FlatModel(Flawed()), population, Preprocess(), CPU), Flawed(), algorithm, population
    )
    with ranks(Flawed(), population=population, augment=Preprocess()) as engine:
        found = one_round(engine, Flawed(), algorithm, population)
    assert found.accepted_K.tolist() == expected.accepted_K.tolist() == [True] * 3 + [False] + [True] * 3
    assert list(found.client_states) == list(expected.client_states) == [0, 1, 2, 4, 5, 6]
    assert found.uploads_P is not None
    torch.testing.assert_close(found.update_W, expected.update_W, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.uploads_P, expected.uploads_P, rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class Mine(SGD):
    """A part that somebody else has written."""


def test_a_part_of_ones_own_is_sent_where_it_can_be() -> None:
    assert_same_game(replace(FEDAVG, client_optimizer=Mine(0.1)), linear())

    class Hidden(SGD):
        pass

    with ranks(linear()) as engine, pytest.raises(ValueError, match=r"Hidden.*use engine=reference"):
        one_round(engine, linear(), replace(FEDAVG, client_optimizer=Hidden(0.1)))


def test_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="device is cuda"):
        MultiprocessEngine(FlatModel(linear()), POPULATION, AUGMENT, torch.device("cuda"))
    with pytest.raises(ValueError, match="workers is 0"):
        ranks(linear(), 0)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ValueError, match="cannot fork a process: use engine=reference"):
        ranks(linear())
