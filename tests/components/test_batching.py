"""Batches of a client: which examples they have, how often, and in which order."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.components import EpochBatching, VirtualClientBatching
from manyeyes.core.rng import make_rng

fast_settings = settings(deadline=None, max_examples=60)
seeds, sizes, batches = st.integers(0, 9999), st.integers(1, 30), st.integers(1, 8)


def examples_of(rows: np.ndarray) -> list[int]:
    """Return the examples in the batches, without padding."""
    return rows[rows >= 0].tolist()


@fast_settings
@given(seeds, sizes, st.integers(1, 4), batches)
def test_epochs_visit_each_example_once_in_each_pass(seed: int, num_held: int, epochs: int, batch_size: int) -> None:
    rows = EpochBatching(epochs, batch_size).batches(num_held, make_rng(seed, "draw"))
    steps = -(-num_held // batch_size)
    assert rows.shape == (epochs * steps, batch_size)
    for epoch in rows.reshape(epochs, steps * batch_size):
        assert sorted(epoch[:num_held]) == list(range(num_held))
        assert (epoch[num_held:] == -1).all()


@fast_settings
@given(seeds, sizes, st.integers(1, 3), batches, st.integers(1, 30))
def test_max_examples_draws_that_many_without_replacement(
    seed: int, num_held: int, epochs: int, batch_size: int, limit: int
) -> None:
    batching = EpochBatching(epochs, batch_size, limit)
    visits = Counter(examples_of(batching.batches(num_held, make_rng(seed, "draw"))))
    assert len(visits) == batching.num_examples(num_held) == min(num_held, limit)
    assert set(visits.values()) == {epochs}
    assert set(visits) <= set(range(num_held))


def test_max_examples_draws_other_examples_each_round_and_reaches_all() -> None:
    rounds = [
        frozenset(examples_of(EpochBatching(1, 4, max_examples=5).batches(20, make_rng(0, "draw", t, 7))))
        for t in range(60)
    ]
    assert len(set(rounds)) > 50
    assert frozenset.union(*rounds) == set(range(20))


def test_epochs_differ_in_order() -> None:
    first, second = EpochBatching(2, 20).batches(20, make_rng(0, "draw"))
    assert first.tolist() != second.tolist()


@fast_settings
@given(seeds, sizes, st.integers(1, 30), batches)
def test_virtual_clients_repeat_examples_only_if_there_are_too_few(
    seed: int, num_held: int, size: int, batch_size: int
) -> None:
    batching = VirtualClientBatching(size, batch_size)
    rows = batching.batches(num_held, make_rng(seed, "draw"))
    selected = examples_of(rows)
    assert len(selected) == batching.num_examples(num_held) == size
    assert rows.shape == (-(-size // batch_size), batch_size)
    assert set(selected) <= set(range(num_held))
    if num_held >= size:
        assert len(set(selected)) == size


def test_virtual_clients_with_replacement_draw_uniformly() -> None:
    batching = VirtualClientBatching(12, 4)
    selected = np.concatenate([examples_of(batching.batches(4, make_rng(0, "draw", t))) for t in range(2000)])
    stddev = np.sqrt(24_000 * 0.25 * 0.75)
    assert (np.abs(np.bincount(selected, minlength=4) - 6000) < 5 * stddev).all()
