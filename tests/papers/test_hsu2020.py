"""The numbers of Hsu et al. are those of their paper, and the recipes those of its sections 5 and 6."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from manyeyes.papers import EXHIBITS
from manyeyes.papers.exhibit import ExhibitRow, PrintedValue
from manyeyes.papers.metric import AfterRounds, Multiple, RoundsTo, WithinBatches
from manyeyes.papers.statistics import Statistic

SEED = "seeds/hsu2020-paper.md"
Tables = Callable[[str, str], list[list[str]]]
BUDGETS: list[AfterRounds | WithinBatches] = [
    *(AfterRounds("accuracy", n) for n in (1000, 2500, 5000)),
    *(WithinBatches("accuracy", n) for n in (10_000, 25_000, 50_000)),
]


def label(name: str, vc: str, ir: str, cohort: str) -> str:
    return name + " + FedVC" * (vc == "✓") + " + FedIR" * (ir == "✓") + f", K={cohort}"


def rows(exhibit: str) -> dict[str, ExhibitRow]:
    return {row.name: row for row in EXHIBITS[f"hsu2020.{exhibit}"].rows}


def values(row: ExhibitRow, metrics: list[AfterRounds | WithinBatches]) -> list[str]:
    return [f"{number.value:.1f}" for metric in metrics if (number := row.expected[metric]) is not None]


def test_table1_is_the_papers(table: Tables) -> None:
    recorded = rows("table1")
    known = {"iNaturalist Geo Splits": "iNaturalist-Geo"}
    lines = [line for line in table(SEED, "Table 1") if len(line) == 6 and re.search(r"\d", line[1])]
    assert len(lines) == len(recorded) == 5
    for name, clients, _, classes, examples, accuracy in lines:
        row = recorded[known.get(name, name)]
        printed = {metric: number.value for metric, number in row.expected.items() if number is not None}
        assert sorted(value for metric, value in printed.items() if str(metric).startswith("train users")) == [
            int(text.replace(",", "")) for text in clients.split(" to ")
        ]
        assert printed[Statistic("classes")] == int(classes.replace(",", ""))
        assert printed[Statistic("train images")] == int(examples.replace(",", ""))
        assert f"{printed[AfterRounds('accuracy')]:.2f}%" == accuracy


def test_table2_is_the_papers(table: Tables) -> None:
    recorded, data, num_compared = rows("table2"), "", 0
    for line in table(SEED, "Table 2")[2:]:
        data = line[0] or data
        if line[1] == "Centralized":
            assert [cell for cell in line[2:] if cell] == ["57.9"]
            assert recorded["Centralized"].expected[AfterRounds("accuracy")] == PrintedValue(
                57.9, "%", "Table 2, row Centralized"
            )
            continue
        _, name, vc, cohort, *printed = line
        assert values(recorded[f"{data}, {label(name, vc, '', cohort)}"], BUDGETS) == printed
        num_compared += 1
    assert num_compared == len(recorded) - 1 == 8


def test_table3_is_the_papers(table: Tables) -> None:
    recorded, lines = rows("table3"), table(SEED, "Table 3")[2:]
    for name, vc, ir, cohort, *printed in lines[:-1]:
        assert values(recorded[label(name, vc, ir, cohort)], BUDGETS[:3]) == printed
    assert len(lines) == len(recorded) == 9
    assert lines[-1][0] == "Centralized"
    assert "57.9" in lines[-1]


def test_table4_is_the_papers(table: Tables) -> None:
    recorded, lines = rows("table4"), table(SEED, "Table 4")[3:]
    for name, ir, cohort, *printed in lines[:-1]:
        row = label(name, "", ir, cohort)
        assert values(recorded[f"{row}, two layers"], BUDGETS[:3]) == printed[:3]
        assert values(recorded[f"{row}, all layers"], BUDGETS[:3]) == printed[3:]
    assert 2 * len(lines) == len(recorded) == 26
    bounds = [recorded[f"Centralized, {part} layers"].expected[AfterRounds("accuracy")] for part in ("two", "all")]
    assert [cell for cell in lines[-1] if cell] == [
        "Centralized",
        *(f"{number.value:g}" for number in bounds if number),
    ]


def test_table5_is_the_papers(table: Tables) -> None:
    recorded, num_compared = rows("table5"), 0
    for _, name, start, cohort, *printed in table(SEED, "Table 5")[2:]:
        expected = recorded[f"{name}, {start}, K={cohort}"].expected
        for fraction, cell in zip((0.1, 0.5, 0.9), printed, strict=True):
            rounds = expected[RoundsTo(fraction)]
            assert rounds is not None
            if rounds.is_lower_bound:
                assert cell == f"> {rounds.value // 1000:g}k"
                assert Multiple(fraction) not in expected
            else:
                multiple = expected[Multiple(fraction)]
                assert multiple is not None
                assert cell == f"{rounds.value:g} ({multiple.value:.1f} \\times)"
            num_compared += 1
    assert num_compared == 24


def test_multiples_of_table5_follow_from_its_rounds_except_one() -> None:
    wrong = []
    for row in rows("table5").values():
        first = row.expected.get(RoundsTo(0.1))
        for fraction in (0.1, 0.5, 0.9):
            rounds, multiple = row.expected.get(RoundsTo(fraction)), row.expected.get(Multiple(fraction))
            if first and rounds and multiple and abs(rounds.value / first.value - multiple.value) > 0.0501:
                wrong.append((row.name, fraction))
    assert wrong == [("FedAvgM, pretrained, K=100", 0.9)]


def test_quoted_numbers_are_in_the_paper(says: Callable[[str, str, float], bool]) -> None:
    quoted: list[PrintedValue] = [
        number
        for name, exhibit in EXHIBITS.items()
        if name.startswith("hsu2020.")
        for row in exhibit.rows
        for number in row.expected.values()
        if number is not None and '"' in number.source
    ]
    assert len(quoted) > 40
    assert [number for number in quoted if not says(SEED, number.source, number.value)] == []


@pytest.mark.parametrize("figure", ["figure5", "figure6", "figure7", "figure9"])
def test_the_numbers_of_a_figure_are_in_a_table(figure: str) -> None:
    tables = {
        number
        for name in ("table2", "table3", "table4", "table5")
        for row in rows(name).values()
        for number in row.expected.values()
    }
    in_figure = {number for row in rows(figure).values() for number in row.expected.values() if number is not None}
    assert in_figure
    assert in_figure <= tables


def test_the_grid_is_appendix_a1() -> None:
    """Seven effective learning rates by six momenta; half a step of the exponent is a factor of the root of ten."""
    row = rows("figure4")
    fedavg, fedavgm = row["CIFAR-10, FedAvg, K=10, alpha=0.1"], row["CIFAR-10, FedAvgM, K=10, alpha=0.1"]
    assert (len(fedavg.runs), len(fedavgm.runs)) == (7, 35)
    rates = [float(run.setting("algorithm.lr") or 0) for run in fedavg.runs]
    assert (rates[0], rates[-1]) == (0.001, 1)
    assert [b / a for a, b in pairwise(rates)] == pytest.approx([10**0.5] * 6, rel=1e-4)
    pairs = [(run.setting("algorithm.lr"), run.setting("server_optimizer.momentum")) for run in fedavgm.runs]
    effective = {f"{float(lr or 0) / (1 - float(beta or 0)):.2g}" for lr, beta in pairs}
    assert len(effective) == 7


def test_figure8_has_all_momenta_for_each_effective_learning_rate() -> None:
    row = rows("figure8")["CIFAR-100, K=20, E=5, alpha=0.5, eta_eff=10^-2"]
    undamped = [1 - float(run.setting("server_optimizer.momentum") or 0) for run in row.runs]
    assert undamped == pytest.approx([10**-2.5, 10**-2, 10**-1.5, 10**-1, 10**-0.5, 1], rel=1e-3)
    rates = [float(run.setting("algorithm.lr") or 0) for run in row.runs]
    assert [lr / factor for lr, factor in zip(rates, undamped, strict=True)] == pytest.approx([0.01] * 6, rel=1e-3)
    assert {run.setting("rounds") for run in row.runs} == {"20000"}


def test_a_run_is_long_enough_for_every_budget_of_its_row() -> None:
    """FedVC trains four batches per round; without it each round has at least one, and a budget of batches ends it."""
    for row in rows("table2").values():
        for run in row.runs:
            rounds, vc = int(run.setting("rounds") or 0), run.setting("algorithm.virtual_client_size") == "256"
            for metric in row.expected:
                if isinstance(metric, AfterRounds) and metric.rounds is not None:
                    assert rounds >= metric.rounds
                if isinstance(metric, WithinBatches) and vc:
                    assert 4 * rounds >= metric.batches
                if isinstance(metric, WithinBatches) and run.setting("max_local_batches"):
                    assert rounds >= int(run.setting("max_local_batches") or 0) >= metric.batches
