"""The options of a reproduction, and the folders and commands that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyeyes.papers import EXHIBITS
from manyeyes.papers.plan import ReproduceOptions, planned_runs, select_rows


@pytest.mark.parametrize(
    ("options", "tag", "folder_tag"),
    [
        (ReproduceOptions(), "", ""),
        (ReproduceOptions(scale=0.01), "scaled by 0.01", "scaled_by_0.01"),
        (ReproduceOptions(rounds=60), "cut at 60 rounds", "cut_at_60_rounds"),
        (ReproduceOptions(synthetic=True), "on synthetic data", "on_synthetic_data"),
        (
            ReproduceOptions(scale=1e-6, rounds=1, synthetic=True),
            "scaled by 1e-06, cut at 1 rounds, on synthetic data",
            "scaled_by_1e-06_cut_at_1_rounds_on_synthetic_data",
        ),
    ],
)
def test_options_can_be_read_from_a_folder(options: ReproduceOptions, tag: str, folder_tag: str) -> None:
    assert (options.tag, options.folder_tag) == (tag, folder_tag)
    assert ReproduceOptions.from_folder_tag(folder_tag, Path("runs")) == options


def test_another_folder_has_no_options() -> None:
    assert ReproduceOptions.from_folder_tag("scaled_by_hand", Path("runs")) is None


def test_arguments_give_the_options() -> None:
    options = ReproduceOptions(
        0.5, True, 7, 2, ("a, b",), ("lr_*",), data=Path("data"), extra=("engine=reference", "evaluate_every=3")
    )
    assert options.arguments == (
        "rows=a, b",
        "grid_filter=lr_*",
        "scale=0.5",
        "synthetic=true",
        "rounds=7",
        "seeds=2",
        "data=data",
        "engine=reference",
        "evaluate_every=3",
    )
    assert ReproduceOptions().arguments == ()


def test_the_folder_of_a_run_has_its_paper_name_and_seed() -> None:
    options = ReproduceOptions(seeds=1, rows=("FL-F-17",), synthetic=True, folder=Path("mine"))
    (run,) = planned_runs(select_rows(EXHIBITS["flair.table1"], options), options)
    assert run.folder == Path("mine/flair/on_synthetic_data/FL-F-17/0")


def test_a_row_is_selected_by_its_name_before_parts_of_names() -> None:
    names = [row.name for row in select_rows(EXHIBITS["flair.table1"], ReproduceOptions(rows=("FL-F-17",))).rows]
    assert names == ["FL-F-17"], "PFL-F-17 has the same text in its name"
