"""One changed bit, in any file of a run or a store, is named and refused, or changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.bit_flips import FLIPS
from tests.faults.campaign import NAMED


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("a run is read", 3),
        ("a store is read", 8),
        pytest.param("a run is resumed", 4, marks=pytest.mark.slow),
        pytest.param("a run is read", 60, marks=pytest.mark.slow),
    ],
)
def test_no_changed_bit_is_silent(tmp_path: Path, name: str, count: int) -> None:
    tally = FLIPS[name](tmp_path, count)
    assert tally.failures == []
    assert tally.counts[NAMED] > 2 * count
