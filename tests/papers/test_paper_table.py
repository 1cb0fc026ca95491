"""FLAIR's table 1 in its own shape: 12 rows, 8 columns, at 80 characters."""

from __future__ import annotations

import csv
import io

from manyeyes.papers import EXHIBITS
from manyeyes.papers.comparison import ComparedNumber
from manyeyes.papers.paper_table import TERMINAL_WIDTH, paper_csv, paper_tables

TABLE1 = EXHIBITS["flair.table1"]
HEADER = ["setting", "C-AP", "C-P", "C-R", "C-F1", "O-AP", "O-P", "O-R", "O-F1"]


def measured(*values: float, is_paper_run: bool = True) -> list[ComparedNumber]:
    """Return table 1 with the same values measured for each of its numbers."""
    return [
        ComparedNumber(row.name, metric, printed, values, is_paper_run)
        for row in TABLE1.rows
        for metric, printed in row.expected.items()
    ]


def test_the_tables_have_the_shape_of_the_papers() -> None:
    printed, ours, differences, exact = paper_tables(TABLE1, measured(0.606, 0.602), "")
    for table in (printed, ours, differences):
        assert table.header == HEADER
        assert len(table.rows) == 12
    assert printed.rows[0] == ["C-R-17", "60.6", "71.7", "49.3", "58.4", "87.4", "81.8", "74.2", "77.8"]
    assert ours.rows[0] == ["C-R-17", *["60.4"] * 8]
    assert differences.rows[0][1:3] == ["-0.2=", "-11.3"]
    assert exact.header == ["setting", "exact C-AP", "exact O-AP"]


def test_they_are_readable_at_80_columns() -> None:
    for table in paper_tables(TABLE1, measured(0.606), ""):
        lines = table.terminal(TERMINAL_WIDTH).splitlines()
        assert max(map(len, lines)) <= 80
        assert len([line for line in lines if line.startswith("│ ")]) == 12, "a row has wrapped"


def test_runs_that_are_not_the_papers_have_no_differences() -> None:
    captions = [table.caption for table in paper_tables(TABLE1, measured(0.6, is_paper_run=False), "on synthetic data")]
    assert [caption.partition(",")[0] for caption in captions] == ["The paper", "Measured", "Measured"]
    assert all("on synthetic data" in caption for caption in captions[1:])


def test_the_csv_has_deviations_and_the_exact_ap() -> None:
    rows = list(csv.DictReader(io.StringIO(paper_csv(TABLE1, measured(0.6, 0.7), "scaled"))))
    first = {row["numbers"]: row for row in rows[:5]}
    assert (first["paper"]["C-AP"], first["paper deviation"]["C-AP"]) == ("60.6", "0.5")
    assert (first["measured"]["exact C-AP"], first["measured deviation"]["exact C-AP"]) == ("65.0", "7.1")
    assert first["measured"]["runs are"] == "scaled"
    assert len(rows) == 12 * 5


def test_ap_is_compared_at_the_200_thresholds_of_the_released_benchmark() -> None:
    printed = {str(metric) for metric, number in TABLE1.rows[0].expected.items() if number is not None}
    assert {"macro_ap_200", "micro_ap_200"} <= printed
    assert not {"macro_ap", "micro_ap"} & printed
