"""Every table and figure that was promised is there, and each of its commands is one that a person can type."""

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
from manyeyes.papers import ITEMS, item
from manyeyes.papers.exhibit import DatasetRecipe, PrintedValue, RunRecipe, cells
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
    return tuple(dict.fromkeys(run for one in ITEMS.values() for run in one.runs))


def covering(candidates: Iterator[RunRecipe]) -> list[RunRecipe]:
    """Runs that have every setting with every value at least once: composing all 3,000 would take minutes."""
    seen: set[str] = set()
    chosen = []
    for run in candidates:
        if not seen.issuperset(run.settings):
            seen.update(run.settings)
            chosen.append(run)
    return chosen


@pytest.fixture(scope="module")
def hydra() -> Iterator[None]:
    with hydra_context():
        yield


def check(run: RunRecipe) -> Any:
    """The settings of a run as `manyeyes run` would read and build them."""
    config = compose_config(run.settings)
    build_algorithm(config)
    build_preprocess(config)
    return config


def test_every_item_that_was_promised_is_there() -> None:
    assert list(ITEMS) == PROMISED


def test_an_unknown_item_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"there is no 'flair.table9' in the papers: choose flair.table1, "):
        item("flair.table9")


@pytest.mark.parametrize("key", ITEMS)
def test_an_item_says_what_it_is_and_has_something_to_do(key: str) -> None:
    one = ITEMS[key]
    assert one.kind in ("table", "figure")
    assert one.key == key
    assert one.title
    assert one.runs or one.stores
    assert all(row.expected or row.stores for row in one.rows)
    assert len({row.name for row in one.rows}) == len(one.rows)


def test_two_runs_of_a_paper_have_one_name_only_if_they_are_one() -> None:
    for paper in ("flair", "hsu2020", "fedper"):
        mine = {run for one in ITEMS.values() if one.paper == paper for run in one.runs}
        assert len({run.name for run in mine}) == len(mine)
        assert len({run.settings for run in mine}) == len(mine)


def test_every_number_says_where_it_stands() -> None:
    """In a table that a test here reads from the paper, in a quoted sentence, or in a plot that FACTS.md read."""
    tables = {"flair": r"(Table 1|Figure 4), row ", "hsu2020": r"Table [1-5], row ", "fedper": r"Figure [2478], "}
    for one in ITEMS.values():
        for row in one.rows:
            for number in filter(None, row.expected.values()):
                assert re.match(tables[one.paper], number.where) or re.search(r': ".+"$', number.where), number


def test_a_store_is_prepared_in_one_way() -> None:
    stores = {store for one in ITEMS.values() for store in one.stores}
    assert len({(store.path, store.options) for store in stores}) == len({store.path for store in stores})


def test_every_setting_of_every_run_is_one_that_the_command_takes(hydra: None) -> None:
    chosen = covering(iter(runs()))
    assert len(chosen) > 50
    for run in chosen:
        config = check(run)
        assert run.store is not None
        assert config.data.path == run.store.path


def test_every_stand_in_is_one_that_the_command_takes(hydra: None) -> None:
    for run in covering(scale(on_synthetic_data(run), 0.01) for run in runs()):
        assert check(run).data.name == "world"


def test_every_run_states_what_scaling_needs() -> None:
    for run in runs():
        assert int(run.setting("rounds") or 0) > 0
        everyone = run.setting("algorithm.select") == "everyone" or run.setting("algorithm") == "centralised"
        assert everyone or int(run.setting("algorithm.cohort") or 0) > 0


def test_every_store_can_be_prepared_and_shown() -> None:
    for store in {store for one in ITEMS.values() for store in one.stores}:
        for command in (store.prepare, store.show):
            assert _parser().parse_args(shlex.split(command)[2:])


def test_the_run_of_a_command_is_the_run() -> None:
    run = ITEMS["flair.table1"].rows[4].runs[0]
    assert shlex.split(run.command)[:2] == ["manyeyes", "run"]
    assert tuple(shlex.split(run.command)[2:]) == run.settings


def test_bounds_come_first_and_once() -> None:
    table3 = ITEMS["hsu2020.table3"]
    assert [run.name for run in table3.runs].index("inaturalist-centralised") == 0
    assert len(table3.runs) == 9


@pytest.mark.parametrize(
    ("number", "words", "plain"),
    [
        (PrintedValue(62.0, "%", "", spread=0.3), "62 ± 0.3 %", 0.62),
        (PrintedValue(0.917, "", "", tolerance=0.005), "0.917 (read off a plot, ± 0.005)", 0.917),
        (PrintedValue(50_000, "rounds", "", beyond=True), "> 50,000 rounds", 50_000),
    ],
)
def test_a_number_in_words_and_in_our_unit(number: PrintedValue, words: str, plain: float) -> None:
    assert str(number) == words
    assert number.plain == pytest.approx(plain)


def test_a_store_says_how_it_is_made_and_shown() -> None:
    store = DatasetRecipe("data/x", ("cifar10", "--raw", "my raw"), "fine")
    assert store.prepare == "manyeyes data prepare cifar10 --raw 'my raw' --out data/x"
    assert store.show == "manyeyes data show data/x --task fine"


def test_cells_are_apart_by_spaces() -> None:
    assert cells("\na  b\n1 22\n") == [["a", "b"], ["1", "22"]]


@pytest.mark.parametrize("key", ITEMS)
def test_the_page_of_the_papers_has_the_item_as_it_is(key: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "papers.md").read_text()
    one = ITEMS[key]
    (line,) = (line for line in page.splitlines() if line.startswith(f"| `manyeyes reproduce {key}` |"))
    assert one.title in line
    assert one.claim in line
    assert (f"{len(one.runs):,} runs" if one.runs else "data only") in line
    assert one.note.strip() in page
