"""Runs in Python: loaded from folders, as data frames, and in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import manyeyes as me
from manyeyes.core.population import Population
from manyeyes.training.result import Result
from tests.training.small_runs import run

pd = pytest.importorskip("pandas")


@pytest.fixture
def trained(population: Population, tmp_path: Path) -> Result:
    return run(population, me.fedavg(cohort_size=3, batch_size=2), tmp_path / "runs" / "first")


def test_the_events_are_a_data_frame_with_a_row_for_each_round(trained: Result) -> None:
    frame = trained.to_pandas()
    assert frame.index.tolist() == [0, 1, 2, 3, 4]
    assert frame["accuracy"].dropna().index.tolist() == [0, 2, 4]
    assert frame.loc[4, "accuracy"] == trained.final["accuracy"]


def test_the_scores_of_classes_and_users_are_data_frames_as_in_the_files(trained: Result) -> None:
    assert trained.folder is not None
    for frame, file, name in ((trained.per_class(), "per_class", "class"), (trained.per_user(), "per_user", "user")):
        expected = pd.read_csv(trained.folder / f"{file}.csv", dtype={name: str}).set_index(name)
        pd.testing.assert_frame_equal(frame, expected, check_index_type=False)


def test_a_loaded_run_has_the_data_frames_of_its_result(trained: Result, tmp_path: Path) -> None:
    loaded = me.load_run(tmp_path / "runs" / "first")
    for method in ("to_pandas", "per_class", "per_user"):
        pd.testing.assert_frame_equal(getattr(loaded, method)(), getattr(trained, method)())
    assert repr(loaded) == f"RunRecord('first', finished after 4 rounds, accuracy {trained.final['accuracy']:.4f})"


def test_a_result_without_a_folder_has_data_frames_too(population: Population) -> None:
    result = run(population, me.fedavg(cohort_size=3), rounds=1)
    assert len(result.per_user()) == 1
    assert result.record.name == "training"


def test_scores_that_do_not_exist_are_a_sentence(trained: Result) -> None:
    without_test = Result(trained.model, trained.events, None, None)
    with pytest.raises(ValueError, match="The run has no scores of single users: it was not evaluated"):
        without_test.per_user()


def test_a_missing_pandas_is_a_sentence(trained: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pandas is not installed: run pip install"):
        trained.to_pandas()


def test_several_runs_are_one_table(trained: Result, population: Population, tmp_path: Path) -> None:
    run(population, me.fedavg(cohort_size=3, batch_size=2), tmp_path / "runs" / "second", seed=1, rounds=2)
    (tmp_path / "runs" / "notes").mkdir()
    runs = me.load_runs(tmp_path / "runs" / "*")
    assert [record.name for record in runs] == ["first", "second"]
    assert (len(runs), runs[1].rounds, runs["first"].rounds) == (2, 2, 4)
    table = runs.to_pandas()
    assert table.index.tolist() == ["first", "second"]
    assert table["seed"].tolist() == [0, 1]
    assert table.loc["first", "accuracy"] == trained.final["accuracy"]
    assert "finished after 4 rounds" in runs._repr_html_()
    assert repr(runs).startswith("Runs(2 runs: first, second")
    assert repr(runs).count("\n") == 0
    with pytest.raises(ValueError, match=r"Found no run 'frist' \(did you mean 'first'\?\): choose first, second"):
        runs["frist"]
    with pytest.raises(ValueError, match="has 2 runs: name one of them, or use load_runs"):
        me.load_run(tmp_path / "runs")


def test_a_pattern_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="matches no folder of a run"):
        me.load_runs(tmp_path / "*")


def test_a_result_is_one_line_and_in_a_notebook_a_table_and_a_chart(trained: Result) -> None:
    assert repr(trained) == f"Result({trained.describe()}; 4 rounds)"
    html: Any = trained._repr_html_()
    assert f'<td style="text-align:left">{trained.final["accuracy"]:.4f}</td>' in html
    assert html.count("<svg") == 1
