"""FLAIR's numbers are those of its paper, and its recipes those of section 5.1."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from manyeyes.papers import EXHIBITS
from manyeyes.papers.exhibit import Exhibit
from manyeyes.papers.flair import METRICS, run
from manyeyes.papers.metric import AfterRounds, ClassMetric

SEED = "seeds/flair-paper.md"
Tables = Callable[[str, str], list[list[str]]]
TABLE1, FIGURE4 = EXHIBITS["flair.table1"], EXHIBITS["flair.figure4"]


def test_table1_is_the_papers(table: Tables) -> None:
    head, *lines = table(SEED, "Table 1")
    printed = {}
    for settings, *cells in lines:  # three settings per line, and three values per cell
        for column, cell in zip(head[1:], cells, strict=True):
            values = re.findall(r"([\d.]+)_\{\\pm ([\d.]+)\}", cell)
            for setting, (value, std) in zip(settings.split(), values, strict=True):
                printed[setting, METRICS[column]] = (float(value), float(std))
    assert len(printed) == 12 * 8
    assert printed == {
        (row.name, metric.metric): (number.value, number.std)
        for row in TABLE1.rows
        for metric, number in row.expected.items()
        if isinstance(metric, AfterRounds) and number is not None
    }


def test_the_per_class_table_is_the_papers(table: Tables) -> None:
    head, *lines = table(SEED, "**Per user results.**")
    labels = [cell.replace("- ", "") for cell in head[1:]]
    labels = ["interior_room" if label == "interio room" else label for label in labels]
    labels = ["light" if label == "r light" else label for label in labels]  # the seed has cut the head oddly
    printed = {
        (setting, label): float(value) for setting, *cells in lines for label, value in zip(labels, cells, strict=True)
    }
    assert len(printed) == 6 * 17
    assert printed == {
        (row.name, metric.label): number.value
        for row in FIGURE4.rows
        for metric, number in row.expected.items()
        if isinstance(metric, ClassMetric) and number is not None
    }


@pytest.mark.parametrize(
    "exhibit", [EXHIBITS["flair.figure2"], EXHIBITS["flair.figure3"]], ids=lambda exhibit: exhibit.key
)
def test_quoted_numbers_are_in_the_paper(exhibit: Exhibit, says: Callable[[str, str, float], bool]) -> None:
    quoted = [number for row in exhibit.rows for number in row.expected.values() if number is not None]
    assert quoted
    assert [number for number in quoted if not says(SEED, number.source, number.value)] == []


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("FL-R-17", "algorithm.lr", "0.1"),
        ("FL-F-17", "algorithm.lr", "0.01"),
        ("FL-F-17", "server_optimizer.lr", "0.1"),
        ("PFL-F-17", "server_optimizer.lr", "0.02"),
        ("PFL-F-17", "privacy.noise_cohort_size", "5000"),
        ("FL-F-17", "rounds", "5000"),
        ("C-R-17", "rounds", "100"),
        ("C-F-17", "rounds", "50"),
        ("C-F-1628", "data.task", "fine"),
        ("C-R-17", "model.pretrained", None),
        ("C-R-17", "privacy.epsilon", None),
        ("FL-F-17", "server_optimizer.beta2", "0.99"),
        ("C-R-17", "select_best_on", "val"),
    ],
)
def test_a_setting_is_trained_as_section_5_1_says(setting: str, name: str, value: str | None) -> None:
    assert run(setting).setting(name) == value


def test_the_printed_gaps_of_figure4_are_not_those_of_the_text() -> None:
    """Section 5.2 says 68, 81 and 96 % between recreation and outdoor; the exhibit's note says that they differ."""
    ap = {
        row.name: {m.label: n.value for m, n in row.expected.items() if isinstance(m, ClassMetric) and n}
        for row in FIGURE4.rows
    }
    gaps = [round(100 * (1 - ap[name]["recreation"] / ap[name]["outdoor"])) for name in ("C-R", "FL-R", "PFL-R")]
    assert gaps == [65, 83, 95]
