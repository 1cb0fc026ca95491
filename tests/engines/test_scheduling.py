"""A round as work for lanes: everybody is in it once, little is padded, and no lane waits long."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.components import EpochBatching
from manyeyes.core.plan import ClientPlan
from manyeyes.data.synthetic.users import sizes
from manyeyes.engines.gpu.scheduling import ALIKE, WIDTHS, Group, bucket, cut, make_groups
from manyeyes.engines.load_balancing import balance


def client(key: int, held: int, epochs: int = 1, batch: int = 16) -> ClientPlan:
    rows = EpochBatching(epochs, batch).batches(held, np.random.default_rng(key))
    return ClientPlan(key, key, held, 1.0, rows, (rows >= 0).astype(np.float32), None, np.arange(len(rows)), None, None)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=90), st.sampled_from([1, 4, 64]), st.booleans())
def test_every_client_is_in_one_group_and_every_example_in_a_batch(held: list[int], most: int, exact: bool) -> None:
    clients = [client(k, n) for k, n in enumerate(held)]
    groups = make_groups(clients, most, exact)
    assert sorted(place for group in groups for place in group.client_indices) == list(range(len(held)))
    for group in groups:
        assert len(group.client_indices) <= group.width <= most
        assert group.width in (*WIDTHS, most)
        for place in group.client_indices:
            real = real_batch_sizes(clients[place].example_indices_SB)
            assert len(real) >= ALIKE * len(group.batches)
            assert all(need <= size for need, size in zip(real, group.batches, strict=False))
        if exact and most == 1:
            assert group.batches == tuple(real_batch_sizes(clients[group.client_indices[0]].example_indices_SB))


def test_buckets_by_hand() -> None:
    assert [bucket(n, 16) for n in (0, 1, 2, 3, 4, 5, 7, 9, 13, 16)] == [1, 1, 2, 3, 4, 6, 8, 12, 16, 16]
    assert [bucket(n, 50) for n in (33, 49, 50)] == [48, 50, 50]


def test_lengths_by_hand() -> None:
    rows = np.array([[4, 5, 6], [7, -1, -1], [-1, -1, -1]])
    assert real_batch_sizes(rows).tolist() == [3, 1, 0]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 9), st.integers(1, 12))
def test_pieces_hold_every_step_once_and_in_order(steps: list[int], lanes: int, room: int) -> None:
    groups = [Group((k,), 1, (1,) * n) for k, n in enumerate(steps)]
    seen = []
    for share in balance([group.cost for group in groups], lanes):
        for piece in cut([groups[place] for place in share], room):
            assert 0 < sum(stretch.last - stretch.first for stretch in piece) <= room
            seen += [(s.group.client_indices[0], step) for s in piece for step in range(s.first, s.last)]
    assert len(seen) == len(set(seen)) == sum(steps)
    assert all(b > a for (u, a), (v, b) in pairwise(seen) if u == v)


def test_little_is_padded_and_no_lane_waits_long_with_flairs_users() -> None:
    """200 users of FLAIR's sizes, two epochs in batches of 16."""
    held = np.minimum(sizes(41_131, 0), 512)
    for seed in range(5):
        chosen = np.random.default_rng(seed).choice(held, 200, replace=False)
        clients = [client(k, int(n), epochs=2) for k, n in enumerate(chosen)]
        groups = make_groups(clients, 1, exact=False)
        padded = sum(sum(group.batches) for group in groups)
        assert padded <= 1.15 * 2 * chosen.sum()
        costs = [group.cost for group in groups]
        loads = [sum(costs[place] for place in share) for share in balance(costs, 8)]
        assert max(loads) <= max(1.05 * np.mean(loads), max(group.cost for group in groups))
