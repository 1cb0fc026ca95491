"""What one client may claim, compared with values computed by hand; and rounds in which nothing is bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from manyeyes.flower.app import FederationConfig
from manyeyes.flower.members import ClientInfo, DataFormat, Member, resolve_members
from manyeyes.flower.protection import describe_outsized
from manyeyes.flower.server import serve
from manyeyes.models.flat import FlatModel

SETTINGS = "model=linear rounds=2 algorithm.cohort_size=4 algorithm.batch_size=3 algorithm.lr=0.05 evaluate_every=0 engine.device=cpu"
DATA = DataFormat(("red", "green"), False, 8, 8)


def test_class_counts_of_a_client_count_as_one_and_a_half_equal_shares_of_the_target_distribution() -> None:
    reported = [(5, 5), (5, 5), (5, 5), (100_000, 0)]
    infos = {
        node: ClientInfo(Member(str(node), node, sum(counts), 0), DATA, counts) for node, counts in enumerate(reported)
    }
    members, _, _ = resolve_members(infos, FederationConfig())
    assert members.target_distribution == pytest.approx((33 / 48, 15 / 48))  # 18 = 1.5 / 4 * (30 + 18)


def test_a_client_that_claims_far_more_images_than_the_others_is_named() -> None:
    names, counts = ["anna", "ben", "carl", "dora"], [10, 10, 10, 100_000]
    text = describe_outsized(names, counts, FederationConfig())
    assert text == "protection: counted as 18 training images where all take part: dora (100,000)"
    assert describe_outsized(names, [10, 10, 10, 12], FederationConfig()) == ""


def test_where_nothing_is_bounded_protection_changes_no_bit(make_grid: Callable[..., Any], tmp_path: Path) -> None:
    names = ("max_norm_ratio", "reject_norm_ratio", "max_weight_ratio")
    weights = []
    for limit, is_on in ((1000.0, True), (0.0, False)):  # 0 turns a bound off
        config = FederationConfig(SETTINGS, str(tmp_path / str(is_on)), num_clients=4, join_timeout=5, reply_timeout=5)
        config = replace(config, **dict.fromkeys(names, limit), reject_opposed=is_on)  # type: ignore[arg-type]
        result = serve(make_grid(config), config)
        assert not any(event.keys() & {"clipped_clients", "rejected_clients"} for event in result.events)
        weights.append(FlatModel(result.model).read())
    assert torch.equal(*weights)
