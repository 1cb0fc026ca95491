"""Every runner does the same work: where nothing is random, the weights are the same."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.rounds import handwritten, ours, plain
from benchmarks.rounds.case import Case
from benchmarks.rounds.works import FLAIR_ADAM, WORKS, SimpleCNN, Workload, flair_sizes
from manyeyes.algorithms import centralized, fedadam, fedavg

ONE_LABEL = Workload(
    about="everyone, and each client's photos in one batch: no order matters",
    users=4,
    photos=6,
    side=8,
    classes=3,
    model="lenet",
    algorithm=fedavg(cohort_size=4, epochs=2, batch_size=8, lr=0.1, momentum=0.5),
)
SEVERAL = replace(
    ONE_LABEL,
    photos=0,  # so that clients count differently
    classes=5,
    multi=True,
    algorithm=replace(
        fedadam(cohort_size=4, epochs=2, batch_size=64, lr=0.1, max_grad_norm=0.05), server_optimizer=FLAIR_ADAM
    ),
)
CENTRAL = replace(ONE_LABEL, users=1, photos=24, algorithm=centralized(batch_size=24))


def case(runner: str, **how: object) -> Case:
    return Case(work="", runner=runner, device="cpu", rounds=2, warmup=1, **how)  # type: ignore[arg-type]


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("work", [ONE_LABEL, SEVERAL, CENTRAL], ids=["one label", "several", "central"])
def test_the_plain_loop_ends_with_the_weights_of_the_reference(work: Workload) -> None:
    mine, theirs = ours.play(case("ours", engine="reference"), work), plain.play(case("plain"), work)
    assert mine.images == theirs.images == [int(work.epochs * work.population().num_examples.sum())] * 3
    moved = weights(mine.model) - weights(work.module())
    assert float(moved.norm()) > 1e-3
    torch.testing.assert_close(weights(theirs.model) - weights(work.module()), moved, rtol=1e-3, atol=1e-6)


def test_the_handwritten_loop_ends_with_the_weights_of_the_plain_one() -> None:
    hand, theirs = handwritten.play(case("handwritten"), CENTRAL), plain.play(case("plain"), CENTRAL)
    torch.testing.assert_close(weights(hand.model), weights(theirs.model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("work", [ONE_LABEL, SEVERAL], ids=["one label", "several"])
def test_pfl_ends_with_the_weights_of_the_plain_loop(work: Workload) -> None:
    pytest.importorskip("pfl")
    pfl = importlib.import_module("benchmarks.rounds.pfl")
    peer, theirs = pfl.play(case("pfl"), work), plain.play(case("plain"), work)
    assert peer.images == theirs.images
    torch.testing.assert_close(weights(peer.model), weights(theirs.model), rtol=1e-4, atol=1e-6)


def test_a_round_takes_no_longer_with_two_thousand_times_the_users() -> None:
    work = WORKS["crowd"]
    few, many = (
        ours.play(replace(case("ours", engine="reference"), rounds=5), work.resized(users, 2))
        for users in (100, 200_000)
    )
    assert few.images == many.images == [10] * 6
    assert min(many.seconds) < 3 * min(few.seconds) + 0.05


def test_pfls_network_has_as_many_weights_as_in_its_benchmark() -> None:
    convolutions, linear = (27 + 1) * 32 + (288 + 1) * 64, (64 * 14 * 14 + 1) * 128 + (128 + 1) * 10
    assert len(weights(SimpleCNN(10, 32))) == convolutions + linear


def test_users_of_flair_hold_as_many_photos_as_published() -> None:
    held = flair_sizes(10_000)
    assert np.quantile(held, [0.25, 0.5, 0.75]).tolist() == [1, 2, 5]
    assert held.max() == 512


@pytest.mark.parametrize("name", WORKS)
def test_a_work_is_whole(name: str) -> None:
    work = WORKS[name]
    assert work.epochs >= 1 and work.batch >= 1 and work.local.lr > 0
    assert work.cohort <= work.users
    work.augment.check(work.side, work.side)
    assert work.resized(0, 0) == work
