"""The sentences that a report opens with, and the names of the runs of a sweep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyeyes.report.curves import group_runs, mean_curve
from manyeyes.report.findings import findings
from manyeyes.report.overview import summary
from manyeyes.report.page import Section
from manyeyes.report.sections import reproduction_section
from manyeyes.report.sweep import sweep_section
from manyeyes.training.run_names import find_runs
from manyeyes.training.run_record import RunRecord

Sweep = Callable[..., list[RunRecord]]
PRESETS = {"fedavg": ("uniform", 1), "fedvc": ("size_weighted", 2)}  # a sampler and an option that follow


@pytest.fixture
def sweep(make_run: Callable[..., Path], tmp_path: Path) -> Sweep:
    """Read the runs of a sweep: for each, its settings by their full names and its last accuracy."""

    def make(arguments: list[str], runs: list[tuple[dict[str, Any], float]]) -> list[RunRecord]:
        for number, (settings, accuracy) in enumerate(runs):
            folder = make_run(f"2026-01-01_00-00-00_sweep/{number}", settings, [0.1, accuracy])
            command = {"command": ["manyeyes run", "--multirun", *arguments]}
            (folder / "environment.json").write_text(json.dumps(command))
        return find_runs([str(tmp_path / "2026-01-01_00-00-00_sweep")])

    return make


@pytest.fixture
def algorithms(sweep: Sweep) -> list[RunRecord]:
    """Two algorithms with two seeds each, as the README sweeps them; each has a sampler of its own."""
    scores = {("fedavg", 0): 0.2, ("fedavg", 1): 0.4, ("fedvc", 0): 0.5, ("fedvc", 1): 0.5}
    runs = []
    for (algorithm, seed), score in scores.items():
        sampler, epochs = PRESETS[algorithm]
        settings = {"algorithm.name": algorithm, "algorithm.epochs": epochs, "sampler.name": sampler, "seed": seed}
        runs.append((settings | {"data_caveats": "synthetic images"}, score))
    return sweep(["algorithm=fedavg,fedvc", "seed=0,1"], runs)


def test_runs_of_a_sweep_are_named_by_what_the_command_varied(algorithms: list[RunRecord]) -> None:
    names = ["fedavg · seed 0", "fedavg · seed 1", "fedvc · seed 0", "fedvc · seed 1"]
    assert [run.name for run in algorithms] == names
    assert [group.name for group in group_runs(algorithms)] == ["fedavg", "fedvc"]


def test_a_run_of_a_sweep_on_its_own_has_the_same_name(algorithms: list[RunRecord]) -> None:
    assert find_runs([str(algorithms[2].folder)])[0].name == "fedvc · seed 0"


def test_groups_over_seeds_are_ranked_and_what_follows_from_them_is_no_column(algorithms: list[RunRecord]) -> None:
    table = summary(algorithms)[0]
    assert table.header == ["", "seeds", "accuracy, last", "accuracy, best", "time"]
    assert [row[:3] for row in table.rows] == [["fedvc", "2", "50.0 ± 0.0 %"], ["fedavg", "2", "30.0 ± 14.1 %"]]
    assert (table.best_row, table.colors) == (0, [1, 0]), "the colors of the charts"


def test_the_first_sentences_say_what_was_compared_and_what_came_out(algorithms: list[RunRecord]) -> None:
    assert findings(group_runs(algorithms)) == (
        "Compared: fedavg and fedvc, with 2 seeds each for 1 round, on synthetic images. fedvc ended with the highest "
        "accuracy, 50.0 ± 0.0 % (mean and standard deviation over 2 seeds), 20.0 percentage points above fedavg."
    )


def test_a_lead_within_the_deviation_is_named_as_such(sweep: Sweep) -> None:
    scores = [("a", 0, 0.2), ("a", 1, 0.4), ("b", 0, 0.3), ("b", 1, 0.4)]
    runs = sweep(["algorithm=a,b", "seed=0,1"], [({"algorithm.name": a, "seed": s}, y) for a, s, y in scores])
    assert findings(group_runs(runs)).endswith(
        "5.0 percentage points above a, which is within one standard deviation over the seeds."
    )


def test_a_lead_of_one_seed_may_be_chance(sweep: Sweep) -> None:
    runs = sweep(["algorithm.lr=0.1,0.3"], [({"algorithm.lr": lr, "seed": 0}, lr) for lr in (0.1, 0.3)])
    text = findings(group_runs(runs))
    assert text.startswith("Compared: lr 0.1 and lr 0.3, with one seed each for 1 round. lr 0.3 ended with the highest")
    assert text.endswith(
        "20.0 percentage points above lr 0.1; with one seed each, chance alone can make such a difference."
    )


def test_a_single_run_is_not_compared(make_run: Callable[..., Path]) -> None:
    settings = {"algorithm.name": "fedavg", "model.name": "lenet", "eval_split": "test", "seed": 0}
    runs = find_runs([str(make_run("mine", settings, [0.1, 0.25]))])
    expected = "fedavg trained lenet for 1 round. It ended with accuracy 25.0 % on the test split, with one seed."
    assert findings(group_runs(runs)) == expected


def test_each_run_of_a_sweep_has_its_own_command(algorithms: list[RunRecord]) -> None:
    markup = reproduction_section(algorithms).html(0)
    assert "manyeyes run algorithm=fedvc seed=1" in markup
    assert "--multirun" not in markup


def grid(sweep: Sweep, *names: str) -> Section | None:
    """Return the section of a sweep over two values of each setting; the score is the sum of the values."""
    choices: list[dict[str, float]] = [{}]
    for name in names:
        choices = [{**choice, f"algorithm.{name}": value} for choice in choices for value in (0.1, 0.2)]
    runs = sweep(
        [f"algorithm.{name}=0.1,0.2" for name in names], [(choice, sum(choice.values())) for choice in choices]
    )
    return sweep_section(group_runs(runs))


def test_two_swept_settings_are_a_heat_map(sweep: Sweep) -> None:
    section = grid(sweep, "lr", "momentum")
    assert section is not None
    markup = section.html(0)
    assert '<th scope="row">lr 0.2</th>' in markup and '<th scope="col">momentum 0.1</th>' in markup
    assert "<b>40.0 %</b></td>" in markup, "the highest score is marked"
    assert [chart.title for chart in section.charts] == ["lr 0.1", "lr 0.2"]


def test_three_swept_settings_are_parallel_coordinates(sweep: Sweep) -> None:
    section = grid(sweep, "lr", "momentum", "alpha")
    assert section is not None
    markup = section.html(0)
    assert markup.count("<title>") == 8
    assert "<title>alpha 0.2 · lr 0.2 · momentum 0.1: 50.0 %</title>" in markup


def test_one_swept_number_is_a_curve_of_scores(sweep: Sweep) -> None:
    runs = sweep(["algorithm.lr=0.1,0.2,0.4"], [({"algorithm.lr": lr}, lr) for lr in (0.4, 0.1, 0.2)])
    section = sweep_section(group_runs(runs))
    assert section is not None
    (chart,) = section.charts
    assert (list(chart.series[0].x), list(chart.series[0].y)) == ([0.1, 0.2, 0.4], [0.1, 0.2, 0.4])


def test_algorithms_alone_need_no_section(algorithms: list[RunRecord]) -> None:
    assert sweep_section(group_runs(algorithms)) is None


def test_a_sweep_over_personalized_and_other_algorithms_shows_the_score_of_each(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    metrics = {"fedavg": "accuracy", "ditto": "personalized_accuracy", "fedper": "accuracy"}
    for number, (name, metric) in enumerate(metrics.items()):
        for lr in (0.1, 0.2):
            settings = {"algorithm.name": name, "algorithm.lr": lr}
            make_run(f"{name}_{lr}", settings, [0.1, lr + number / 10], metric=metric)
    section = sweep_section(group_runs(find_runs([str(tmp_path)])))
    assert section is not None
    lines = {series.name: list(series.y) for chart in section.charts for series in chart.series}
    assert any(values == [0.1, pytest.approx(0.3)] for name, values in lines.items() if "personalized" in name)
    assert "of personalized models where a run has them" in section.html(0)


def test_a_name_has_three_settings_and_the_folder_where_they_are_not_enough(sweep: Sweep) -> None:
    runs = [dict.fromkeys("vwxyz", 0) | {name: 1} for name in "vwxyz"]
    names = [run.name for run in sweep([f"{name}=0,1" for name in "vwxyz"], [(run, 0.2) for run in runs])]
    assert names == [
        "v 1 · w 0 · x 0",
        "v 0 · w 1 · x 0",
        "v 0 · w 0 · x 1",
        "v 0 · w 0 · x 0 · 3",
        "v 0 · w 0 · x 0 · 4",
    ]


def test_an_option_that_only_one_dataset_has_is_in_no_name(sweep: Sweep) -> None:
    settings = [{"data.name": "synthetic", "data.users": 9}, {"data.name": "cifar10"}]
    runs = sweep(["data=synthetic,cifar10", "data.users=9"], [(chosen, 0.2) for chosen in settings])
    assert [run.name for run in runs] == ["synthetic", "cifar10"]


def test_runs_on_different_data_are_not_ranked(sweep: Sweep) -> None:
    runs = sweep(["data=a,b"], [({"data.name": name}, 0.2) for name in "ab"])
    assert findings(group_runs(runs)).endswith("The runs are on different data, so no ranking of them is made.")
    assert summary(runs)[0].best_row is None


def test_runs_that_differ_in_more_than_six_settings_are_no_sweep(sweep: Sweep) -> None:
    runs = [dict.fromkeys("abcdefg", 0) | {name: 1} for name in "abcdefg"]
    read = sweep([f"{name}=0,1" for name in "abcdefg"], [(run, 0.2) for run in runs])
    assert sweep_section(group_runs(read)) is None
    expected = "Compared: 7 choices of settings (2 values of a, 2 values of b, 2 values of c, 2 values of d and 3 more)"
    assert findings(group_runs(read)).startswith(expected)


def test_a_rate_of_the_server_is_named_in_full(sweep: Sweep) -> None:
    settings = [{"algorithm.lr": 0.1, "server_optimizer.lr": lr} for lr in (1, 2)]
    runs = sweep(["server_optimizer.lr=1,2"], [(chosen, 0.2) for chosen in settings])
    assert [run.name for run in runs] == ["server_optimizer.lr 1", "server_optimizer.lr 2"]


def test_a_band_of_accuracies_ends_at_zero(sweep: Sweep) -> None:
    runs = sweep(["seed=0,1"], [({"seed": seed}, accuracy) for seed, accuracy in ((0, 0.0), (1, 0.2))])
    curve = mean_curve(runs, "accuracy")
    assert curve is not None
    _, *columns = curve
    assert columns[1].tolist() == [pytest.approx(0.1), 0.0]
