"""What a client trains on: every draw against what its sentence promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.components import EpochBatching, VirtualClientBatching
from manyeyes.core.rng import make_rng

quick = settings(deadline=None, max_examples=60)
seeds, sizes, batches = st.integers(0, 9999), st.integers(1, 30), st.integers(1, 8)


def real(rows: np.ndarray) -> list[int]:
    return rows[rows >= 0].tolist()


@quick
@given(seeds, sizes, st.integers(1, 4), batches)
def test_epochs_visit_each_example_once_in_each_pass(seed: int, held: int, epochs: int, batch: int) -> None:
    rows = EpochBatching(epochs, batch).batches(held, make_rng(seed, "draw"))
    steps = -(-held // batch)
    assert rows.shape == (epochs * steps, batch)
    for epoch in rows.reshape(epochs, steps * batch):
        assert sorted(epoch[:held]) == list(range(held))
        assert (epoch[held:] == -1).all()


@quick
@given(seeds, sizes, st.integers(1, 3), batches, st.integers(1, 30))
def test_a_limit_draws_so_many_examples_without_replacement(
    seed: int, held: int, epochs: int, batch: int, limit: int
) -> None:
    draw = EpochBatching(epochs, batch, limit)
    visits = Counter(real(draw.batches(held, make_rng(seed, "draw"))))
    assert len(visits) == draw.num_examples(held) == min(held, limit)
    assert set(visits.values()) == {epochs}
    assert set(visits) <= set(range(held))


def test_a_limit_draws_anew_each_round_and_reaches_everything() -> None:
    rounds = [
        frozenset(real(EpochBatching(1, 4, max_examples=5).batches(20, make_rng(0, "draw", t, 7)))) for t in range(60)
    ]
    assert len(set(rounds)) > 50
    assert frozenset.union(*rounds) == set(range(20))


def test_epochs_differ_in_order() -> None:
    first, second = EpochBatching(2, 20).batches(20, make_rng(0, "draw"))
    assert first.tolist() != second.tolist()


@quick
@given(seeds, sizes, st.integers(1, 30), batches)
def test_fixed_size_repeats_examples_only_where_there_are_too_few(
    seed: int, held: int, examples: int, batch: int
) -> None:
    draw = VirtualClientBatching(examples, batch)
    rows = draw.batches(held, make_rng(seed, "draw"))
    drawn = real(rows)
    assert len(drawn) == draw.num_examples(held) == examples
    assert rows.shape == (-(-examples // batch), batch)
    assert set(drawn) <= set(range(held))
    if held >= examples:
        assert len(set(drawn)) == examples


def test_fixed_size_with_replacement_is_uniform() -> None:
    drawn = np.concatenate([real(VirtualClientBatching(12, 4).batches(4, make_rng(0, "draw", t))) for t in range(2000)])
    spread = np.sqrt(24_000 * 0.25 * 0.75)
    assert (np.abs(np.bincount(drawn, minlength=4) - 6000) < 5 * spread).all()
