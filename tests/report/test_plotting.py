"""Charts in a notebook."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import manyeyes as me
from manyeyes.training.result import Result

EVENTS = [{"round": 0, "accuracy": 0.25, "loss": 2.0}, {"round": 1, "train_loss": 1.5}, {"round": 2, "accuracy": 0.5}]
RESULT = Result(nn.Identity(), EVENTS, None, None)


def test_a_chart_has_the_evaluated_rounds() -> None:
    figure = RESULT.plot()
    (series,) = figure.chart.series
    assert (series.x, series.y) == ([0, 2], [0.25, 0.5])
    assert repr(figure) == "Figure('Accuracy', 1 curves)"
    assert figure._repr_html_().startswith("<svg ")


def test_another_metric_can_be_drawn() -> None:
    (series,) = RESULT.plot("train_loss").chart.series
    assert (series.x, series.y) == ([1], [1.5])


def test_several_runs_are_in_one_chart() -> None:
    other = replace(RESULT, events=[{"round": 0, "accuracy": 0.1}, {"round": 3, "accuracy": 0.9}])
    assert [series.y for series in me.plot(RESULT, other).chart.series] == [[0.25, 0.5], [0.1, 0.9]]


def test_what_has_to_be_said_of_the_data_is_in_the_title() -> None:
    assert replace(RESULT, caveats=("synthetic images",)).plot().chart.title == "Accuracy (synthetic images)"


def test_a_chart_is_saved(tmp_path: Path) -> None:
    RESULT.plot().save(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("runs", "metric", "message"),
    [
        ((), "", "plot needs a run"),
        ((RESULT,), "acuracy", r"no metric 'acuracy' \(did you mean 'accuracy'\?\): choose accuracy, loss"),
        ((replace(RESULT, events=[]),), "", "no completed round yet"),
    ],
)
def test_what_cannot_be_drawn_is_a_sentence(runs: tuple[Result, ...], metric: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        me.plot(*runs, metric=metric)
