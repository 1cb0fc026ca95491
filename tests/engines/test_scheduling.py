"""The schedule of a round: every client once, little padding, and no stream waits long."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.components import EpochBatching
from manyeyes.core.plan import ClientPlan
from manyeyes.data.synthetic.users import sizes
from manyeyes.engines.gpu.scheduling import (
    MIN_STEPS_FRACTION,
    WIDTHS,
    Group,
    bucket,
    cut,
    make_groups,
    real_batch_sizes,
)
from manyeyes.engines.load_balancing import balance


def make_client(client_id: int, num_held: int, epochs: int = 1, batch_size: int = 16) -> ClientPlan:
    indices_SB = EpochBatching(epochs, batch_size).batches(num_held, np.random.default_rng(client_id))
    return ClientPlan(
        user=client_id,
        client_id=client_id,
        num_examples=num_held,
        weight=1.0,
        example_indices_SB=indices_SB,
        example_weights_SB=(indices_SB >= 0).astype(np.float32),
        augment_uniforms_SBD=None,
        dropout_seeds_S=np.arange(len(indices_SB)),
        full_indices=None,
        full_weights=None,
    )


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=90), st.sampled_from([1, 4, 64]), st.booleans())
def test_every_client_is_in_one_group_and_every_example_in_a_batch(
    num_held: list[int], max_width: int, exact: bool
) -> None:
    clients = [make_client(k, n) for k, n in enumerate(num_held)]
    groups = make_groups(clients, max_width, exact)
    assert sorted(k for group in groups for k in group.client_indices) == list(range(len(num_held)))
    for group in groups:
        assert len(group.client_indices) <= group.width <= max_width
        assert group.width in (*WIDTHS, max_width)
        for k in group.client_indices:
            real_sizes = real_batch_sizes(clients[k].example_indices_SB)
            assert len(real_sizes) >= MIN_STEPS_FRACTION * len(group.batch_sizes)
            assert all(real <= size for real, size in zip(real_sizes, group.batch_sizes, strict=False))
        if exact and max_width == 1:
            (k,) = group.client_indices
            assert group.batch_sizes == tuple(real_batch_sizes(clients[k].example_indices_SB))


def test_buckets_by_hand() -> None:
    assert [bucket(n, 16) for n in (0, 1, 2, 3, 4, 5, 7, 9, 13, 16)] == [1, 1, 2, 3, 4, 6, 8, 12, 16, 16]
    assert [bucket(n, 50) for n in (33, 49, 50)] == [48, 50, 50]


def test_real_batch_sizes_by_hand() -> None:
    indices_SB = np.array([[4, 5, 6], [7, -1, -1], [-1, -1, -1]])
    assert real_batch_sizes(indices_SB).tolist() == [3, 1, 0]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 9), st.integers(1, 12))
def test_chunks_have_every_step_once_and_in_order(num_steps: list[int], num_streams: int, max_steps: int) -> None:
    groups = [Group((k,), 1, (1,) * n) for k, n in enumerate(num_steps)]
    steps = []
    for indices in balance([group.cost for group in groups], [0.0] * num_streams):
        for chunk in cut([groups[index] for index in indices], max_steps):
            assert 0 < sum(r.last - r.first for r in chunk) <= max_steps
            steps += [(r.group.client_indices[0], step) for r in chunk for step in range(r.first, r.last)]
    assert len(steps) == len(set(steps)) == sum(num_steps)
    assert all(b > a for (k, a), (j, b) in pairwise(steps) if k == j)


def test_users_of_flairs_sizes_need_little_padding_and_no_stream_waits_long() -> None:
    """200 users of FLAIR's sizes, two epochs in batches of 16."""
    num_held = np.minimum(sizes(41_131, 0), 512)
    for seed in range(5):
        cohort = np.random.default_rng(seed).choice(num_held, 200, replace=False)
        clients = [make_client(k, int(n), epochs=2) for k, n in enumerate(cohort)]
        groups = make_groups(clients, 1, exact=False)
        num_padded = sum(sum(group.batch_sizes) for group in groups)
        assert num_padded <= 1.15 * 2 * cohort.sum()
        costs = [group.cost for group in groups]
        loads = [sum(costs[index] for index in indices) for indices in balance(costs, [0.0] * 8)]
        assert max(loads) <= max(1.05 * sum(loads) / len(loads), *costs)
