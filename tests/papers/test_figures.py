"""The charts of exhibits, of runs that are written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from manyeyes.papers import EXHIBITS, Exhibit
from manyeyes.papers.comparison import compare
from manyeyes.papers.figures import figures
from manyeyes.papers.plan import ReproduceOptions, planned_run, select_rows
from manyeyes.papers.results import ExhibitResults
from manyeyes.report.chart import Axis, Chart, Kind, ReferenceLine, Series
from manyeyes.report.export import render_png
from manyeyes.report.svg import render_svg

WriteRun = Callable[..., None]
STATS = {"classes": ["cat"], "labels": "one per image", "pixels": [1, 1]}
SPLIT = {
    "users": 1, "images": 1, "class_images": [1], "class_users": [1], "size_percentiles": [1.0],
    "class_percentiles": [1.0], "emd_percentiles": [0.0],
}  # fmt: skip


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Return a function that writes a finished run of an exhibit, with its metric after some rounds."""

    def write(
        exhibit: Exhibit,
        options: ReproduceOptions,
        name: str,
        metric: str,
        values: dict[int, float],
        seed: int = 0,
        emd: float = 0,
    ) -> None:
        run = next(run for run in exhibit.runs if run.name == name)
        folder = planned_run(exhibit, options, run, seed).folder
        folder.mkdir(parents=True)
        rounds = range(max(values) + 1) if len(values) < 2000 else values
        events = [{"round": r, "max_client_batches": 1} | ({metric: values[r]} if r in values else {}) for r in rounds]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (folder / "dataset_stats.json").write_text(json.dumps(STATS | {"splits": {"train": SPLIT | {"mean_emd": emd}}}))
        (folder / "model.safetensors").touch()

    return write


def draw(key: str, options: ReproduceOptions) -> list[Chart]:
    return figures(ExhibitResults(select_rows(EXHIBITS[key], options), options))


def test_curves_are_means_over_seeds_with_the_papers_numbers_as_points(tmp_path: Path, write_run: WriteRun) -> None:
    options = ReproduceOptions(rows=("FedAvg + FedVC, K=10",), seeds=2, folder=tmp_path)
    exhibit = EXHIBITS["hsu2020.table3"]
    for seed, last in enumerate((0.4, 0.5)):
        write_run(exhibit, options, "inaturalist-centralized", "accuracy", {0: 0.0, 100: 0.6}, seed)
        write_run(exhibit, options, "user_120k-FedAvg-FedVC-K10", "accuracy", {0: 0.0, 1000: 0.3, 2500: last}, seed)
    (chart,) = draw("hsu2020.table3", options)
    line, paper = chart.series
    assert (line.name, list(line.x)) == ("FedAvg + FedVC, K=10", [0, 1000, 2500])
    assert list(line.y) == pytest.approx([0, 0.3, 0.45])
    deviation = 0.05 * 2**0.5
    assert [line.low[2], line.high[2]] == pytest.approx([0.45 - deviation, 0.45 + deviation])
    assert (paper.name, paper.kind) == ("FedAvg + FedVC, K=10 (paper)", "points")
    assert list(paper.x) == [1000, 2500, 5000]
    assert list(paper.y) == pytest.approx([0.313, 0.397, 0.439])
    assert chart.reference_lines == [ReferenceLine("centralized", y=0.6)]
    assert render_svg(chart).count("<circle") == 3 + 1, (
        "the paper's points are hollow, and so is their key in the legend"
    )


def test_a_bar_has_the_papers_number_as_a_hollow_point(tmp_path: Path, write_run: WriteRun) -> None:
    options = ReproduceOptions(rows=("iNaturalist-User-120k",), folder=tmp_path)
    write_run(EXHIBITS["hsu2020.table1"], options, "inaturalist-centralized", "accuracy", {0: 0.0, 100: 0.6})
    (chart,) = draw("hsu2020.table1", options)
    assert [(series.name, series.kind, list(series.y)) for series in chart.series] == [
        ("measured", "bars", [0.6]),
        ("paper", "points", [pytest.approx(0.579)]),
    ]
    assert render_svg(chart).count("<circle") == 1 + 1


def test_numbers_of_the_paper_are_not_drawn_next_to_synthetic_data(tmp_path: Path, write_run: WriteRun) -> None:
    options = ReproduceOptions(scale=0.1, synthetic=True, rows=("FedAvg + FedVC, K=10",), folder=tmp_path)
    write_run(EXHIBITS["hsu2020.table3"], options, "user_120k-FedAvg-FedVC-K10", "accuracy", {0: 0.0, 10: 0.3})
    (chart,) = draw("hsu2020.table3", options)
    assert [series.name for series in chart.series] == ["FedAvg + FedVC, K=10"]
    assert "(scaled by 0.1, on synthetic data)" in chart.title
    assert "not the paper's" in chart.caption


def test_the_budget_of_a_smaller_run_is_named(tmp_path: Path, write_run: WriteRun) -> None:
    options = ReproduceOptions(scale=0.1, synthetic=True, rows=("FedAvg + FedVC, K=10",), folder=tmp_path)
    exhibit = select_rows(EXHIBITS["hsu2020.table3"], options)
    write_run(exhibit, options, "user_120k-FedAvg-FedVC-K10", "accuracy", {0: 0.0, 100: 0.3, 500: 0.4})
    cells = [number.cells() for number in compare(ExhibitResults(exhibit, options))]
    assert [(metric, paper, measured) for _, metric, paper, measured, *_ in cells] == [
        ("accuracy after 1,000 rounds, here 100", "31.3 %", "30"),
        ("accuracy after 2,500 rounds, here 250", "39.7 %", "30 (measured at round 100 of 250)"),
        ("accuracy after 5,000 rounds, here 500", "43.9 %", "40"),
    ]
    options = ReproduceOptions(rounds=2000, rows=("FedAvg + FedVC, K=10",), folder=tmp_path)
    write_run(exhibit, options, "user_120k-FedAvg-FedVC-K10", "accuracy", {0: 0.0, 1000: 0.3, 2000: 0.4})
    assert [number.cells()[1::2] for number in compare(ExhibitResults(exhibit, options))] == [
        ["accuracy after 1,000 rounds", "30", ""],
        ["accuracy after 2,500 rounds, here 2,000", "40", ""],  # the last round of a run that is cut
        ["accuracy after 5,000 rounds, here 2,000", "40", ""],
    ]


def test_figure_4_is_the_best_relative_accuracy_against_emd(tmp_path: Path, write_run: WriteRun) -> None:
    rows = tuple(f"CIFAR-10, FedAvg, K=10, alpha={alpha}" for alpha in ("100", "0"))
    options = ReproduceOptions(
        rows=rows, grid_filter=("eta_eff_1e-1-left_1e0", "eta_eff_1e-2-left_1e0"), folder=tmp_path
    )
    exhibit = EXHIBITS["hsu2020.figure4"]
    write_run(exhibit, options, "cifar10-centralized", "accuracy", {100: 0.8})
    for alpha, emd, reached in (("100.00", 0.1, (0.5, 0.76)), ("0.00", 1.8, (0.4, 0.2))):
        for rate, value in zip((1, 2), reached, strict=True):
            name = f"cifar10-alpha_{alpha}-K10-E1-eta_eff_1e-{rate}-left_1e0"
            write_run(exhibit, options, name, "accuracy", {100: value}, emd=emd)
    (chart,) = draw("hsu2020.figure4", options)
    (line,) = chart.series
    assert (line.name, list(line.x)) == ("FedAvg, K=10", [0.1, 1.8])
    assert list(line.y) == pytest.approx([0.95, 0.5])
    assert chart.x.label == "mean EMD of the clients"


def test_figure_8_has_a_line_for_each_alpha_over_effective_rates(tmp_path: Path, write_run: WriteRun) -> None:
    options = ReproduceOptions(rows=("CIFAR-10, K=5, E=1, alpha=1,",), grid_filter=("left_1e-1",), folder=tmp_path)
    exhibit = EXHIBITS["hsu2020.figure8"]
    write_run(exhibit, options, "cifar10-centralized", "accuracy", {100: 0.8})
    for rate in ("-3", "-2.5", "0"):
        write_run(exhibit, options, f"cifar10-alpha_1.00-K5-E1-eta_eff_1e{rate}-left_1e-1", "accuracy", {100: 0.4})
    (chart,) = draw("hsu2020.figure8", options)
    (line,) = chart.series
    assert (chart.title, line.name) == ("hsu2020.figure8, CIFAR-10, K=5, E=1", "alpha=1")
    assert list(line.x) == pytest.approx([1e-3, 10**-2.5, 1])


def test_a_figure_without_a_run_is_not_drawn(tmp_path: Path) -> None:
    assert draw("fedper.figure2", ReproduceOptions(folder=tmp_path)) == []


@pytest.mark.parametrize("kind", ["line", "points", "bars"])
def test_a_chart_with_unusual_content_can_be_a_png(kind: Kind) -> None:
    """The content has gaps, bands, names that look like mathematics, a mark and a logarithmic axis."""
    series = Series("cost: 5 $ and 6 $", [0, 1, 2], [1.0, None, 3.0], [0.5, None, 2.5], [1.5, None, 3.5], kind)
    names = Axis("x", names=("a", "b", "c"))
    chart = Chart(
        "chart-1", "A $ chart", names, Axis("y", log=True), [series, series], "", [ReferenceLine("level", y=2.0)]
    )
    assert render_png(chart).startswith(b"\x89PNG")
    assert len(re.findall("\n", chart.csv())) == 7


def test_bars_that_were_evaluated_before_the_papers_rounds_are_named(tmp_path: Path, write_run: WriteRun) -> None:
    options = ReproduceOptions(rows=("FedAvg + FedVC, K=10",), folder=tmp_path)
    write_run(
        EXHIBITS["hsu2020.figure5"], options, "user_120k-FedAvg-FedVC-K10", "accuracy", {0: 0.0, 2400: 0.3, 4800: 0.4}
    )
    (chart,) = draw("hsu2020.figure5", options)
    assert list(chart.series[0].y) == [0.3]
    assert chart.caption.endswith(" Some were measured at round 2,400 of 2,500.")
