"""Callbacks: their hooks, what they may add to events, their state in checkpoints, and how they end a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.algorithms import ditto, fedavg
from manyeyes.core.population import MultiLabels, Population
from manyeyes.training.builtin_callbacks import EarlyStopping
from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.result import Result
from manyeyes.training.run_files import Event
from manyeyes.training.run_folder import read_events
from tests.training.small_runs import events_without_times, run

FEDAVG = fedavg(cohort_size=3, batch_size=4)


@dataclass
class Recording(Callback):
    """Records the names of the hooks that are called, with the round."""

    calls: list[tuple[str, int]] = field(default_factory=list)

    def on_train_start(self, run: TrainingRun) -> None:
        self.calls.append(("start", run.round))

    def on_evaluate_start(self, run: TrainingRun, event: Event) -> None:
        self.calls.append(("evaluate_start", run.round))

    def on_evaluate(self, run: TrainingRun, event: Event) -> None:
        assert "accuracy" in event
        self.calls.append(("evaluate", event["round"]))

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        self.calls.append(("round", event["round"]))

    def on_checkpoint(self, run: TrainingRun) -> None:
        self.calls.append(("checkpoint", run.round))

    def on_train_end(self, run: TrainingRun, result: Result) -> None:
        assert result.events == run.events
        self.calls.append(("end", run.round))

    def close(self) -> None:
        self.calls.append(("close", -1))


def test_hooks_are_called_in_order(population: Population, tmp_path: Path) -> None:
    recording = Recording()
    run(population, FEDAVG, tmp_path, rounds=2, evaluate_every=0, callbacks=[recording])
    first = [("start", 0), ("evaluate_start", 0), ("evaluate", 0), ("round", 0), ("checkpoint", 0)]
    second = [("round", 1), ("checkpoint", 1)]
    last = [("evaluate_start", 2), ("evaluate", 2), ("round", 2), ("checkpoint", 2), ("end", 2), ("close", -1)]
    assert recording.calls == [*first, *second, *last]


class CountRounds:
    """Has only the hooks that it needs, and no base class."""

    def __init__(self) -> None:
        self.num_rounds = 0

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        self.num_rounds += 1
        event["num_rounds"] = self.num_rounds

    def state_dict(self) -> Mapping[str, Any]:
        return {"num_rounds": self.num_rounds, "tensor": torch.tensor([self.num_rounds])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert state["tensor"].tolist() == [state["num_rounds"]]
        self.num_rounds = state["num_rounds"]


def test_added_keys_are_recorded_and_the_state_of_a_callback_is_resumed(population: Population, tmp_path: Path) -> None:
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    run(population, FEDAVG, uninterrupted, callbacks=[CountRounds()])
    run(population, FEDAVG, resumed, rounds=2, callbacks=[CountRounds()])
    run(population, FEDAVG, resumed, callbacks=[CountRounds()], resume=True)
    assert [event["num_rounds"] for event in read_events(resumed / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert events_without_times(resumed) == events_without_times(uninterrupted)


def test_two_callbacks_of_one_class_keep_their_own_states(population: Population, tmp_path: Path) -> None:
    first, second, resumed = Recording(), CountRounds(), CountRounds()
    run(population, FEDAVG, tmp_path, rounds=2, callbacks=[second, first])
    run(population, FEDAVG, tmp_path, rounds=3, callbacks=[resumed, Recording()], resume=True)
    assert (second.num_rounds, resumed.num_rounds) == (3, 4)


@dataclass
class Hostile(Callback):
    action: str

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        if event["round"] == 0:
            return
        if self.action == "change":
            event["train_loss"] = 0.0
        elif self.action == "delete":
            del event["train_loss"]
        elif self.action == "tensor":
            event["weights"] = torch.zeros(1)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("change", "callback=Hostile changed 'train_loss' of a round's event: add other keys instead"),
        ("delete", "callback=Hostile changed 'train_loss' of a round's event"),
        ("tensor", "callback=Hostile added a value to a round's event that JSON cannot hold"),
    ],
)
def test_an_event_can_only_be_extended(population: Population, action: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(population, FEDAVG, callbacks=[Hostile(action)])


class Overwriting(Callback):
    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        run.state.weights.zero_()
        run.events.clear()

    def on_checkpoint(self, run: TrainingRun) -> None:
        run.state.opt_state.clear()


def test_a_callback_sees_copies(population: Population) -> None:
    expected, result = run(population, FEDAVG), run(population, FEDAVG, callbacks=[Overwriting()])
    assert len(result.events) == 5
    assert result.final == expected.final


class StopAfterTwo(Callback):
    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        if event["round"] == 2:
            run.request_stop("two rounds are enough")


def test_a_requested_stop_ends_the_run_as_if_it_was_the_last_round(population: Population, tmp_path: Path) -> None:
    result = run(population, FEDAVG, tmp_path, evaluate_every=0, callbacks=[StopAfterTwo()])
    expected = run(population, FEDAVG, rounds=2)
    assert [event["round"] for event in result.events] == [0, 1, 2]
    assert result.events[-1]["stop_reason"] == "two rounds are enough"
    assert result.final == expected.final
    assert (tmp_path / "model.safetensors").exists()


class Failing(Callback):
    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        raise RuntimeError("it failed")


def test_callbacks_are_closed_when_a_run_fails(population: Population) -> None:
    recording = Recording()
    with pytest.raises(RuntimeError, match="it failed"):
        run(population, FEDAVG, callbacks=[recording, Failing()])
    assert recording.calls[-1] == ("close", -1)


class SetMetric(Callback):
    """Adds a metric with given values, one for each evaluation."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def on_evaluate_start(self, run: TrainingRun, event: Event) -> None:
        event["score"] = self.values[event["round"]]


def num_rounds_until_stop(population: Population, values: list[float], **options: Any) -> int:
    values = [*values, *values[-1:] * 20]
    callbacks = [SetMetric(values), EarlyStopping(metric="score", **options)]
    return len(run(population, FEDAVG, rounds=12, evaluate_every=1, callbacks=callbacks).events) - 1


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([5, 4, 3, 3, 3, 3], {"mode": "min", "patience": 3}, 5),
        ([1, 2, 3, 2, 3, 3], {"mode": "max", "patience": 2}, 4),
        ([5.0, 4.9, 4.8, 4.7, 4.0, 4.0, 4.0], {"mode": "min", "patience": 3, "min_delta": 0.5}, 3),
    ],
)
def test_early_stopping_counts_evaluations_without_improvement(
    population: Population, values: list[float], options: dict[str, Any], expected: int
) -> None:
    assert num_rounds_until_stop(population, values, **options) == expected


def test_early_stopping_knows_which_direction_of_a_metric_is_better(population: Population) -> None:
    algorithm = fedavg(cohort_size=3, lr=1e-30)  # nothing improves
    for metric in ("loss", "accuracy"):
        result = run(
            population, algorithm, rounds=9, evaluate_every=1, callbacks=[EarlyStopping(metric=metric, patience=2)]
        )
        assert len(result.events) == 3
        assert f"{metric} has not improved on" in result.events[-1]["stop_reason"]


@pytest.mark.parametrize(
    ("algorithm", "labels", "metric"),
    [
        (fedavg, "one", "loss"),
        (ditto, "one", "personalized_loss"),
        (fedavg, "several", "macro_ap"),
        (ditto, "several", "personalized_macro_ap"),
    ],
)
def test_early_stopping_follows_the_models_that_the_algorithm_is_for(
    population: Population, algorithm: Any, labels: str, metric: str
) -> None:
    if labels == "several":
        lists = [[label] for label in population.labels.targets(np.arange(len(population))).tolist()]
        population = replace(population, labels=MultiLabels.from_lists(lists, population.classes))
    still = algorithm(cohort_size=3, lr=1e-30)
    result = run(population, still, rounds=9, evaluate_every=1, callbacks=[EarlyStopping(patience=2)])
    assert result.events[-1]["stop_reason"].startswith(f"{metric} has not improved on")


def test_a_resumed_run_continues_to_count(population: Population, tmp_path: Path) -> None:
    algorithm = fedavg(cohort_size=3, lr=1e-30)
    settings: dict[str, Any] = {"evaluate_every": 1, "callbacks": [{"name": "early_stopping", "patience": 4}]}
    run(population, algorithm, tmp_path, rounds=2, **settings)
    result = run(population, algorithm, tmp_path, rounds=9, resume=True, **settings)
    assert result.events[-1]["round"] == 4
    finished = run(population, algorithm, tmp_path, rounds=9, resume=True, **settings)
    assert finished.events[-1]["round"] == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 0}, "callbacks.early_stopping.patience is 0: set it to a whole number of at least 1"),
        ({"min_delta": -1.0}, "callbacks.early_stopping.min_delta is -1.0"),
        ({"mode": "up"}, "callbacks.early_stopping.mode is 'up': set it to auto, max or min"),
    ],
)
def test_invalid_options_of_early_stopping_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**options)


def test_an_unknown_metric_of_early_stopping_is_refused_before_a_folder_exists(
    population: Population, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"early_stopping.metric is 'acuracy'.*\(did you mean 'accuracy'\?\)"):
        run(population, FEDAVG, tmp_path / "run", callbacks=[EarlyStopping(metric="acuracy")])
    assert not (tmp_path / "run").exists()


def test_early_stopping_follows_a_value_that_a_callback_adds(population: Population) -> None:
    class AddsRound:
        def on_evaluate_start(self, run: TrainingRun, event: Event) -> None:
            event["minus_round"] = -float(run.round)

    stops = EarlyStopping(metric="minus_round", patience=2, mode="max")
    result = run(population, FEDAVG, rounds=9, evaluate_every=1, callbacks=[AddsRound(), stops])
    assert result.events[-1]["round"] == 2
