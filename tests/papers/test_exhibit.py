"""Every promised table and figure exists, and each of its commands can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from manyeyes.cli.data import _parser
from manyeyes.config.build import build_algorithm, build_preprocess
from manyeyes.config.compose import compose_config, hydra_context
from manyeyes.papers import EXHIBITS, get_exhibit
from manyeyes.papers.exhibit import DatasetRecipe, PrintedValue, RunRecipe
from manyeyes.papers.printed import printed_table
from manyeyes.papers.scaling import on_synthetic_data, scale

PROMISED = [
    "flair.table1",
    *(f"flair.figure{n}" for n in range(2, 7)),
    *(f"hsu2020.table{n}" for n in range(1, 6)),
    *(f"hsu2020.figure{n}" for n in range(2, 11)),
    *(f"fedper.figure{n}" for n in (2, 4, 7, 8)),
]


@cache
def runs() -> tuple[RunRecipe, ...]:
    return tuple(dict.fromkeys(run for exhibit in EXHIBITS.values() for run in exhibit.runs))


def covering(candidates: Iterator[RunRecipe]) -> list[RunRecipe]:
    """Return runs that have every value of every setting at least once: composing all 3,000 would take minutes."""
    seen: set[str] = set()
    selected = []
    for run in candidates:
        if not seen.issuperset(run.settings):
            seen.update(run.settings)
            selected.append(run)
    return selected


@pytest.fixture(scope="module")
def hydra() -> Iterator[None]:
    with hydra_context():
        yield


def compose_run(run: RunRecipe) -> Any:
    """Return the settings of a run after `manyeyes run` has composed and built them."""
    config = compose_config(run.settings)
    build_algorithm(config)
    build_preprocess(config)
    return config


def test_every_promised_exhibit_exists() -> None:
    assert list(EXHIBITS) == PROMISED


def test_an_unknown_exhibit_is_rejected_by_name() -> None:
    with pytest.raises(ValueError, match=r"Unknown table or figure 'flair.table9': choose flair.table1, "):
        get_exhibit("flair.table9")


@pytest.mark.parametrize("key", EXHIBITS)
def test_an_exhibit_has_a_title_rows_and_runs_or_datasets(key: str) -> None:
    exhibit = EXHIBITS[key]
    assert re.fullmatch(r"(table|figure)\d+", exhibit.name)
    assert exhibit.key == key
    assert exhibit.title
    assert exhibit.runs or exhibit.datasets
    assert all(row.expected or row.datasets for row in exhibit.rows)
    assert len({row.name for row in exhibit.rows}) == len(exhibit.rows)


def test_different_runs_of_a_paper_have_different_names() -> None:
    for paper in ("flair", "hsu2020", "fedper"):
        recipes = {run for exhibit in EXHIBITS.values() if exhibit.paper == paper for run in exhibit.runs}
        assert len({run.name for run in recipes}) == len(recipes)
        assert len({run.settings for run in recipes}) == len(recipes)


def test_every_number_names_its_source() -> None:
    """A table that a test here reads from the paper, a quoted sentence, or a plot that FACTS.md has read."""
    tables = {"flair": r"(Table 1|Figure 4), row ", "hsu2020": r"Table [1-5], row ", "fedper": r"Figure [2478], "}
    for exhibit in EXHIBITS.values():
        for row in exhibit.rows:
            for number in filter(None, row.expected.values()):
                assert re.match(tables[exhibit.paper], number.source) or re.search(r': ".+"$', number.source), number


def test_a_dataset_is_prepared_in_one_way() -> None:
    datasets = {dataset for exhibit in EXHIBITS.values() for dataset in exhibit.datasets}
    recipes = {(dataset.path, dataset.arguments) for dataset in datasets}
    assert len(recipes) == len({dataset.path for dataset in datasets})


@pytest.mark.slow
def test_the_command_takes_every_setting_of_every_run(hydra: None) -> None:
    selected = covering(iter(runs()))
    assert len(selected) > 50
    for run in selected:
        config = compose_run(run)
        assert run.dataset is not None
        assert config.data.path == run.dataset.path


def test_the_command_takes_the_settings_of_a_run_and_of_its_synthetic_one(hydra: None) -> None:
    run = EXHIBITS["flair.table1"].runs[-1]
    assert compose_run(run).data.name == "flair"
    assert compose_run(scale(on_synthetic_data(run), 0.01)).data.name == "synthetic"


@pytest.mark.slow
def test_the_command_takes_every_setting_on_synthetic_data(hydra: None) -> None:
    for run in covering(scale(on_synthetic_data(run), 0.01) for run in runs()):
        assert compose_run(run).data.name == "synthetic"


def test_every_run_has_the_settings_that_scaling_needs() -> None:
    for run in runs():
        assert run.count("rounds") > 0
        uses_all_clients = run.setting("sampler") == "all" or run.setting("algorithm") == "centralized"
        assert uses_all_clients or run.count("algorithm.cohort_size") or run.count("sampler.cohort_size")


def test_every_dataset_can_be_prepared() -> None:
    for dataset in {dataset for exhibit in EXHIBITS.values() for dataset in exhibit.datasets}:
        assert _parser().parse_args(shlex.split(dataset.prepare_command)[2:])


def test_the_command_of_a_run_has_its_settings() -> None:
    run = EXHIBITS["flair.table1"].rows[4].runs[0]
    assert shlex.split(run.command)[:2] == ["manyeyes", "run"]
    assert tuple(shlex.split(run.command)[2:]) == run.settings


def test_centralized_baselines_come_first_and_once() -> None:
    table3 = EXHIBITS["hsu2020.table3"]
    assert [run.name for run in table3.runs].index("inaturalist-centralized") == 0
    assert len(table3.runs) == 9


@pytest.mark.parametrize(
    ("number", "text", "fraction"),
    [
        (PrintedValue(62.0, "%", "", std=0.3), "62 ± 0.3 %", 0.62),
        (PrintedValue(0.917, "", "", reading_error=0.005), "0.917 (read off a plot, ± 0.005)", 0.917),
        (PrintedValue(50_000, "rounds", "", is_lower_bound=True), "> 50,000 rounds", 50_000),
    ],
)
def test_a_printed_value_as_text_and_as_a_fraction(number: PrintedValue, text: str, fraction: float) -> None:
    assert str(number) == text
    assert number.as_fraction == pytest.approx(fraction)


def test_a_dataset_has_the_command_that_prepares_it() -> None:
    dataset = DatasetRecipe("data/x", ("cifar10", "--raw", "my raw"), "fine")
    assert dataset.prepare_command == "manyeyes data prepare cifar10 --raw 'my raw' --out data/x"


def test_spaces_separate_the_cells_of_a_printed_table() -> None:
    assert printed_table("fedper", "figure7") == [
        ["model", "method", "accuracy"],
        ["MobileNet-v1", "FedPer", ".398"],
        ["MobileNet-v1", "FedAvg", ".312"],
    ]


@pytest.mark.parametrize("key", EXHIBITS)
def test_the_docs_describe_the_exhibit(key: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "papers.md").read_text()
    exhibit = EXHIBITS[key]
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `manyeyes reproduce {key}` |"))
    assert exhibit.title in line
    assert exhibit.claim in line
    assert (f"{len(exhibit.runs):,} runs" if exhibit.runs else "data only") in line
    assert exhibit.note in page
