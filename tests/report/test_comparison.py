"""Federated runs against centralized training, by hand."""

from __future__ import annotations

import pytest

from manyeyes.metrics import Curve
from manyeyes.report.comparison import comparison_charts, comparison_table


@pytest.fixture
def curves() -> dict[str, Curve]:
    """Return two runs that were evaluated at rounds 0, 2 and 4, with 5 batches per round; the second stays at 0.1."""
    return {
        "fast": Curve.from_points([0, 2, 4], [0.1, 0.4, 0.6], [5] * 4),
        "slow": Curve.from_points([0, 2, 4], [0.1, 0.1, 0.1], [5] * 4),
    }


def test_the_table_compares_each_run_with_centralized_training(curves: dict[str, Curve]) -> None:
    table = comparison_table(curves, baseline=0.8, target=0.4)
    assert table.header == ["", "accuracy", "relative", "rounds to 40 %", "batches to 40 %", "fluctuation"]
    assert [list(row)[:5] for row in table.rows] == [
        ["centralized", "80.0 %", "1.00", "", ""],
        ["fast", "60.0 %", "0.75", "2", "10"],
        ["slow", "10.0 %", "0.12", "never", "never"],
    ]
    assert table.rows[2][5] == "0.0 %"


def test_the_charts_are_over_rounds_and_over_batches(curves: dict[str, Curve]) -> None:
    by_round, by_batch = comparison_charts(curves, 0.8, 0.4, "A title")
    assert list(by_round.series[0].x) == [0, 2, 4]
    assert list(by_batch.series[0].x) == [0, 10, 20]
    assert [reference.y for reference in by_batch.reference_lines] == [0.8, 0.4]
