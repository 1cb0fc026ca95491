"""The numbers of Hsu et al. are those of their paper, and the recipes those of its sections 5 and 6."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from manyeyes.papers import ITEMS
from manyeyes.papers.exhibit import ExhibitRow, PrintedValue
from manyeyes.papers.metric import AfterRounds, Final, Multiple, RoundsTo, WithinBatches
from manyeyes.papers.statistics import Count

SEED = "seeds/hsu2020-paper.md"
Tables = Callable[[str, str], list[list[str]]]
BUDGETS = [
    *(AfterRounds("accuracy", n) for n in (1000, 2500, 5000)),
    *(WithinBatches("accuracy", n) for n in (10_000, 25_000, 50_000)),
]


def label(name: str, vc: str, ir: str, cohort: str) -> str:
    return name + " + FedVC" * (vc == "✓") + " + FedIR" * (ir == "✓") + f", K={cohort}"


def rows(item: str) -> dict[str, ExhibitRow]:
    return {row.name: row for row in ITEMS[f"hsu2020.{item}"].rows}


def values(row: ExhibitRow, measures: list[AfterRounds | WithinBatches]) -> list[str]:
    return [f"{number.value:.1f}" for measure in measures if (number := row.expected[measure]) is not None]


def test_table1_is_the_papers(table: Tables) -> None:
    ours = rows("table1")
    known = {"iNaturalist Geo Splits": "iNaturalist-Geo"}
    lines = [line for line in table(SEED, "Table 1") if len(line) == 6 and re.search(r"\d", line[1])]
    assert len(lines) == len(ours) == 5
    for name, clients, _, classes, examples, accuracy in lines:
        row = ours[known.get(name, name)]
        printed = {measure: number.value for measure, number in row.expected.items() if number is not None}
        assert sorted(value for measure, value in printed.items() if str(measure).startswith("train users")) == [
            int(text.replace(",", "")) for text in clients.split(" to ")
        ]
        assert printed[Count("classes")] == int(classes.replace(",", ""))
        assert printed[Count("train images")] == int(examples.replace(",", ""))
        assert f"{printed[Final('accuracy')]:.2f}%" == accuracy


def test_table2_is_the_papers(table: Tables) -> None:
    ours, data, seen = rows("table2"), "", 0
    for line in table(SEED, "Table 2")[2:]:
        data = line[0] or data
        if line[1] == "Centralized":
            assert [cell for cell in line[2:] if cell] == ["57.9"]
            assert ours["Centralized"].expected[Final("accuracy")] == PrintedValue(
                57.9, "%", "Table 2, row Centralized"
            )
            continue
        _, name, vc, cohort, *printed = line
        assert values(ours[f"{data}, {label(name, vc, '', cohort)}"], BUDGETS) == printed
        seen += 1
    assert seen == len(ours) - 1 == 8


def test_table3_is_the_papers(table: Tables) -> None:
    ours, lines = rows("table3"), table(SEED, "Table 3")[2:]
    for name, vc, ir, cohort, *printed in lines[:-1]:
        assert values(ours[label(name, vc, ir, cohort)], BUDGETS[:3]) == printed
    assert len(lines) == len(ours) == 9
    assert lines[-1][0] == "Centralized"
    assert "57.9" in lines[-1]


def test_table4_is_the_papers(table: Tables) -> None:
    ours, lines = rows("table4"), table(SEED, "Table 4")[3:]
    for name, ir, cohort, *printed in lines[:-1]:
        row = label(name, "", ir, cohort)
        assert values(ours[f"{row}, two layers"], BUDGETS[:3]) == printed[:3]
        assert values(ours[f"{row}, all layers"], BUDGETS[:3]) == printed[3:]
    assert 2 * len(lines) == len(ours) == 26
    bounds = [ours[f"Centralized, {part} layers"].expected[Final("accuracy")] for part in ("two", "all")]
    assert [cell for cell in lines[-1] if cell] == [
        "Centralized",
        *(f"{number.value:g}" for number in bounds if number),
    ]


def test_table5_is_the_papers(table: Tables) -> None:
    ours, seen = rows("table5"), 0
    for _, name, start, cohort, *printed in table(SEED, "Table 5")[2:]:
        expected = ours[f"{name}, {start}, K={cohort}"].expected
        for share, cell in zip((0.1, 0.5, 0.9), printed, strict=True):
            rounds = expected[RoundsTo(share)]
            assert rounds is not None
            if rounds.beyond:
                assert cell == f"> {rounds.value // 1000:g}k"
                assert Multiple(share) not in expected
            else:
                multiple = expected[Multiple(share)]
                assert multiple is not None
                assert cell == f"{rounds.value:g} ({multiple.value:.1f} \\times)"
            seen += 1
    assert seen == 24


def test_multiples_of_table5_follow_from_its_rounds_but_for_one() -> None:
    wrong = []
    for row in rows("table5").values():
        first = row.expected.get(RoundsTo(0.1))
        for share in (0.1, 0.5, 0.9):
            rounds, multiple = row.expected.get(RoundsTo(share)), row.expected.get(Multiple(share))
            if first and rounds and multiple and abs(rounds.value / first.value - multiple.value) > 0.0501:
                wrong.append((row.name, share))
    assert wrong == [("FedAvgM, pretrained, K=100", 0.9)]


def test_what_is_said_in_sentences_is_said_in_the_paper(says: Callable[[str, str, float], bool]) -> None:
    quoted: list[PrintedValue] = [
        number
        for name, item in ITEMS.items()
        if name.startswith("hsu2020.")
        for row in item.rows
        for number in row.expected.values()
        if number is not None and '"' in number.where
    ]
    assert len(quoted) > 40
    assert [number for number in quoted if not says(SEED, number.where, number.value)] == []


@pytest.mark.parametrize("figure", ["figure5", "figure6", "figure7", "figure9"])
def test_numbers_beside_a_figure_stand_in_a_table(figure: str) -> None:
    tables = {
        number
        for name in ("table2", "table3", "table4", "table5")
        for row in rows(name).values()
        for number in row.expected.values()
    }
    shown = {number for row in rows(figure).values() for number in row.expected.values() if number is not None}
    assert shown
    assert shown <= tables


def test_the_grid_is_appendix_a1() -> None:
    """Seven effective rates by six momenta; a half in the exponent is a factor of the root of ten."""
    row = rows("figure4")
    fedavg, fedavgm = row["CIFAR-10, FedAvg, K=10, alpha=0.1"], row["CIFAR-10, FedAvgM, K=10, alpha=0.1"]
    assert (len(fedavg.runs), len(fedavgm.runs)) == (7, 35)
    rates = [float(run.setting("algorithm.lr") or 0) for run in fedavg.runs]
    assert (rates[0], rates[-1]) == (0.001, 1)
    assert [b / a for a, b in pairwise(rates)] == pytest.approx([10**0.5] * 6, rel=1e-4)
    pairs = [(run.setting("algorithm.lr"), run.setting("algorithm.server_momentum")) for run in fedavgm.runs]
    effective = {f"{float(lr or 0) / (1 - float(beta or 0)):.2g}" for lr, beta in pairs}
    assert len(effective) == 7


def test_figure8_takes_the_best_momentum_at_each_effective_rate() -> None:
    row = rows("figure8")["CIFAR-100, K=20, E=5, alpha=0.5, eta_eff=10^-2"]
    left = [1 - float(run.setting("algorithm.server_momentum") or 0) for run in row.runs]
    assert left == pytest.approx([10**-2.5, 10**-2, 10**-1.5, 10**-1, 10**-0.5, 1], rel=1e-3)
    rates = [float(run.setting("algorithm.lr") or 0) for run in row.runs]
    assert [lr / one for lr, one in zip(rates, left, strict=True)] == pytest.approx([0.01] * 6, rel=1e-3)
    assert {run.setting("rounds") for run in row.runs} == {"20000"}


def test_a_run_is_long_enough_for_every_budget_of_its_row() -> None:
    """FedVC takes four batches a round; without it every round takes at least one, and a budget of batches ends it."""
    for row in rows("table2").values():
        for run in row.runs:
            rounds, vc = int(run.setting("rounds") or 0), run.setting("algorithm.examples") == "256"
            for measure in row.expected:
                if isinstance(measure, AfterRounds):
                    assert rounds >= measure.rounds
                if isinstance(measure, WithinBatches) and vc:
                    assert 4 * rounds >= measure.batches
                if isinstance(measure, WithinBatches) and run.setting("batches"):
                    assert rounds >= int(run.setting("batches") or 0) >= measure.batches
