"""The multiprocess engine equals the reference engine, and runs repeat bit for bit."""

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
from manyeyes.engines.select import choose_engine
from manyeyes.models.fast.cpu import OneDNNLinear, WinogradConv2d, optimize_for_cpu
from tests.engines.engine_runs import initial_state, make_setup, run_rounds
from tests.engines.multiprocess_runs import (
    FEDAVG,
    IMAGES,
    NEEDS_WORKERS,
    POPULATION,
    assert_equals_reference,
    lenet,
    linear,
    make_engine,
    make_reference,
    train_one_round,
    worker_pids,
)

pytestmark = NEEDS_WORKERS


FAST_ALGORITHMS = ("fedavg", "scaffold", "ditto")  # the others are slow tests


@pytest.mark.fast_cases("fedavg-2")
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST_ALGORITHMS else pytest.mark.slow) for name in NAMED_ALGORITHMS],
)
def test_two_rounds_equal_the_references(name: str, workers: int) -> None:
    algorithm = NAMED_ALGORITHMS[name](batch_size=4, lr=0.05, **({"virtual_client_size": 8} if name == "fedvc" else {}))
    is_centralized = isinstance(algorithm.sampler, Centralized)
    population = POPULATION.pooled() if is_centralized else POPULATION
    algorithm = algorithm if is_centralized else replace(algorithm, sampler=AllClients())
    torch.manual_seed(0)
    group_norm_model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3))
    assert_equals_reference(algorithm, group_norm_model if name == "fedbn" else lenet(), population, workers)


def test_personal_layers_stay_with_their_clients() -> None:
    assert_equals_reference(replace(FEDAVG, personal_layers=MatchingLayers(("fc3.*",))), lenet())


def test_the_optimizer_state_stays_with_its_client() -> None:
    assert_equals_reference(replace(FEDAVG, client_optimizer=SGD(0.05, momentum=0.9, persist_state=True)), lenet())


def test_statistics_of_live_batch_norm_are_averaged() -> None:
    torch.manual_seed(0)
    assert_equals_reference(
        FEDAVG, nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    )


@pytest.mark.fast_cases("fedavg")
@pytest.mark.parametrize("name", ["fedavg", "mimelite"])
def test_bf16_equals_the_references(name: str) -> None:
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    assert_equals_reference(
        replace(NAMED_ALGORITHMS[name](batch_size=4, lr=0.05), sampler=AllClients()), module, precision="bf16"
    )


@pytest.mark.slow
def test_winograd_convolutions_agree_with_the_references() -> None:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 5, padding=2), nn.Tanh())
    wide = nn.Sequential(features, nn.Flatten(), nn.Linear(4096, 3))
    wide.channels_last = ("cpu",)  # type: ignore[assignment]
    assert any(isinstance(layer, WinogradConv2d) for layer in optimize_for_cpu(wide).modules())
    assert_equals_reference(replace(fedavg(batch_size=8, lr=0.05), sampler=AllClients()), wide)


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")
def test_onednn_linear_layers_agree_with_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("manyeyes.models.fast.cpu.mkl_is_slow", lambda: True)
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(192, 1400), nn.Tanh(), nn.Linear(1400, 3))
    assert any(isinstance(layer, OneDNNLinear) for layer in optimize_for_cpu(wide).modules())
    assert_equals_reference(replace(fedavg(batch_size=8, lr=0.05), sampler=AllClients()), wide)


def test_dropout_of_a_client_equals_the_references() -> None:
    torch.manual_seed(0)
    assert_equals_reference(FEDAVG, nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3)))


def test_statistics_are_in_the_order_of_the_plan() -> None:
    with make_engine(lenet(), workers=3) as engine:
        actual = train_one_round(engine, lenet())
    expected = train_one_round(make_reference(lenet()), lenet())
    np.testing.assert_allclose(actual.loss_K, expected.loss_K, rtol=1e-6)
    np.testing.assert_allclose(actual.norm_K, expected.norm_K, rtol=1e-6)
    assert actual.accepted_K.tolist() == expected.accepted_K.tolist() == [True] * 7
    assert actual.uploads_P is None


@pytest.mark.slow
def test_a_run_repeats_bit_for_bit() -> None:
    algorithm = replace(scaffold(batch_size=4), sampler=AllClients())
    ends = []
    for _ in range(2):
        with make_engine(lenet()) as engine:
            ends.append(run_rounds(algorithm, engine, POPULATION, initial_state(algorithm, lenet()), 3)[0].weights)
    assert torch.equal(*ends)


@pytest.mark.slow
def test_new_workers_continue_a_run_bit_for_bit() -> None:
    algorithm = replace(scaffold(batch_size=4), sampler=AllClients())
    first = initial_state(algorithm, lenet())
    with make_engine(lenet()) as engine:
        expected, _, _ = run_rounds(algorithm, engine, POPULATION, first, 4)
    with make_engine(lenet()) as engine:
        state, client_states, _ = run_rounds(algorithm, engine, POPULATION, first, 2)
    with make_engine(lenet()) as engine:
        resumed, _, _ = run_rounds(algorithm, engine, POPULATION, state, 2, client_states=client_states)
    assert torch.equal(expected.weights, resumed.weights)


@pytest.mark.slow
def test_at_most_one_worker_per_client_is_started() -> None:
    with make_engine(linear(), workers=20) as engine:
        train_one_round(engine, linear())
        assert len(worker_pids(engine)) == 7


def test_a_worker_has_two_threads_even_if_its_parent_had_more() -> None:
    torch.set_num_threads(2)
    try:
        torch.ones(2**20, requires_grad=True).square().sum().backward()
        with make_engine(lenet()) as engine:
            train_one_round(engine, lenet())
            counts = [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in worker_pids(engine)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert counts == [2, 2]  # one trains, and one watches the parent


class NanForWhiteCorner(nn.Module):
    """Returns NaN for images whose corner is white."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, images: Tensor) -> Tensor:
        is_white = (images[:, :, 0, 0] > 1.99).all(1)
        return self.inner(images) + torch.where(is_white, torch.nan, 0.0)[:, None]


def test_a_client_whose_update_is_not_finite_is_rejected_as_by_the_reference() -> None:
    """Only user 3 has images with a white corner."""
    pixels = IMAGES.copy()
    pixels[:, 0, 0] = 7
    pixels[POPULATION.image_indices[POPULATION.examples(3)], 0, 0] = 255
    population, algorithm = replace(POPULATION, images=pixels), replace(scaffold(batch_size=4), sampler=AllClients())
    module, preprocess = NanForWhiteCorner(), Preprocess()
    expected = train_one_round(make_reference(module, population, preprocess), module, algorithm, population)
    with make_engine(module, population=population, preprocess=preprocess) as engine:
        actual = train_one_round(engine, module, algorithm, population)
    assert actual.accepted_K.tolist() == expected.accepted_K.tolist() == [True] * 3 + [False] + [True] * 3
    assert list(actual.client_states) == list(expected.client_states) == [0, 1, 2, 4, 5, 6]
    assert actual.uploads_P is not None
    torch.testing.assert_close(actual.update_W, expected.update_W, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(actual.uploads_P, expected.uploads_P, rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class CustomSGD(SGD):
    """A component of a user's own."""


def test_a_component_of_a_users_own_is_sent_if_it_can_be_pickled() -> None:
    assert_equals_reference(replace(FEDAVG, client_optimizer=CustomSGD(0.1)), linear())

    class LocalSGD(SGD):
        pass

    setup = make_setup(linear(), POPULATION, engine="multiprocess")
    with pytest.raises(ValueError, match=r"engine=multiprocess does not support this client_optimizer.*LocalSGD"):
        choose_engine(replace(FEDAVG, client_optimizer=LocalSGD(0.1)), setup)


def test_a_machine_or_device_without_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="engine=multiprocess does not support device=cuda"):
        MultiprocessEngine(replace(make_setup(linear(), POPULATION), device=torch.device("cuda")))
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ValueError, match="cannot fork a process: use engine=reference"):
        make_engine(linear())


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine\.workers is -1: set it to a whole number of at least 0"):
        make_engine(linear(), workers=-1)
