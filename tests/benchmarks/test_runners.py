"""Every runner does the same work: where nothing is random, the final weights are the same."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.rounds import handwritten, ours, plain
from benchmarks.rounds.case import BenchCase
from benchmarks.rounds.workloads import FLAIR_ADAM, WORKLOADS, SimpleCNN, Workload, flair_sizes
from manyeyes.algorithms import centralized, fedadam, fedavg
from manyeyes.core.plan import plan_round

SINGLE_LABEL = Workload(
    description="all users, and each client's images in one batch: the order does not matter",
    users=4,
    images_per_user=6,
    image_size=8,
    classes=3,
    model="lenet",
    algorithm=fedavg(cohort_size=4, epochs=2, batch_size=8, lr=0.1, momentum=0.5),
)
MULTI_LABEL = replace(
    SINGLE_LABEL,
    images_per_user=0,  # so that clients have different weights
    classes=5,
    multi=True,
    algorithm=replace(
        fedadam(cohort_size=4, epochs=2, batch_size=64, lr=0.1, max_grad_norm=0.05), server_optimizer=FLAIR_ADAM
    ),
)
CENTRAL = replace(SINGLE_LABEL, users=1, images_per_user=24, algorithm=centralized(batch_size=24))


def make_case(runner: str, **options: Any) -> BenchCase:
    return BenchCase(workload="", runner=runner, device="cpu", rounds=2, warmup=1, **options)


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.fast_cases("multi", "central")
@pytest.mark.parametrize("workload", [SINGLE_LABEL, MULTI_LABEL, CENTRAL], ids=["single", "multi", "central"])
@pytest.mark.slow
def test_the_plain_loop_equals_the_reference_engine(workload: Workload) -> None:
    reference = ours.run(make_case("ours", engine="reference"), workload)
    loop = plain.run(make_case("plain"), workload)
    num_images = int(workload.epochs * workload.population().num_examples.sum())
    assert reference.images == loop.images == [num_images] * 3
    first = weights_of(workload.module())
    update = weights_of(reference.model) - first
    assert float(update.norm()) > 1e-3
    torch.testing.assert_close(weights_of(loop.model) - first, update, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_handwritten_loop_equals_the_plain_one() -> None:
    fast, loop = handwritten.run(make_case("handwritten"), CENTRAL), plain.run(make_case("plain"), CENTRAL)
    torch.testing.assert_close(weights_of(fast.model), weights_of(loop.model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("workload", [SINGLE_LABEL, MULTI_LABEL], ids=["single", "multi"])
def test_pfl_equals_the_plain_loop(workload: Workload) -> None:
    pytest.importorskip("pfl")
    pfl = importlib.import_module("benchmarks.rounds.pfl")
    peer, loop = pfl.run(make_case("pfl"), workload), plain.run(make_case("plain"), workload)
    assert peer.images == loop.images
    torch.testing.assert_close(weights_of(peer.model), weights_of(loop.model), rtol=1e-4, atol=1e-6)


def test_a_round_plans_the_same_work_with_two_thousand_times_the_users() -> None:
    plans = []
    for users in (100, 200_000):
        workload = WORKLOADS["crowd"].resized(users, 2)
        plans.append(plan_round(workload.algorithm, workload.population(), 0, 0))
    for plan in plans:
        assert [client.num_images for client in plan.clients] == [5, 5]


def test_simple_cnn_has_as_many_weights_as_in_pfls_benchmark() -> None:
    convolutions, linear = (27 + 1) * 32 + (288 + 1) * 64, (64 * 14 * 14 + 1) * 128 + (128 + 1) * 10
    assert len(weights_of(SimpleCNN(10, 32))) == convolutions + linear


def test_users_of_flair_have_as_many_images_as_published() -> None:
    num_images = flair_sizes(10_000)
    assert np.quantile(num_images, [0.25, 0.5, 0.75]).tolist() == [1, 2, 5]
    assert num_images.max() == 512


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_consistent(name: str) -> None:
    workload = WORKLOADS[name]
    assert workload.epochs >= 1 and workload.batch_size >= 1 and workload.client_optimizer.lr > 0
    assert workload.cohort <= workload.users
    workload.preprocess.check(workload.image_size, workload.image_size)
    assert workload.resized(0, 0) == workload
