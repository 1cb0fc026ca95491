"""Trackers send the numbers of events; those that are not installed say how to install them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from manyeyes.algorithms import ditto, fedavg
from manyeyes.core.population import Population
from manyeyes.core.registry import names
from manyeyes.training.result import Result
from manyeyes.training.trackers import scalars
from tests.training.small_runs import run


def train_tracked(population: Population, folder: Path, *trackers: str, **settings: Any) -> Result:
    return run(population, fedavg(cohort_size=3), folder, trackers=trackers, **settings)


def recorded_points(folder: Path, name: str) -> tuple[list[int], list[float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    points = events.Scalars(name)
    return [point.step for point in points], [point.value for point in points]


def test_only_numbers_are_tracked() -> None:
    event = {"round": 3, "loss": 0.5, "num_clients": 4, "rejected_clients": ["ann"]}
    assert scalars(event) == {"loss": 0.5, "num_clients": 4}


def test_the_headline_is_tracked_under_one_name_in_all_runs() -> None:
    assert scalars({"round": 0, "accuracy": 0.5}) == {"score": 0.5, "accuracy": 0.5}
    event = {"round": 0, "personalized_accuracy": 0.75, "accuracy": 0.5}
    assert scalars(event)["score"] == 0.75


@pytest.mark.slow
def test_a_script_that_only_imports_the_package_finds_trackers_by_name() -> None:
    script = "from manyeyes import train; from manyeyes.core.registry import names; print(*names('tracker'))"
    modules = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert {"mlflow", "tensorboard", "wandb"} <= {*modules}


def test_tensorboard_names_the_metric_of_the_score(tmp_path: Path, population: Population) -> None:
    run(population, ditto(cohort_size=3), tmp_path, rounds=1, trackers=["tensorboard"])
    assert recorded_points(tmp_path, "score") == recorded_points(tmp_path, "personalized_accuracy")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (text,) = events.Tensors("score_metric/text_summary")
    assert text.tensor_proto.string_val == [b"personalized_accuracy"]


def test_tensorboard_has_the_curve(tmp_path: Path, population: Population) -> None:
    curve = train_tracked(population, tmp_path, "tensorboard").curve()
    rounds, values = recorded_points(tmp_path, "accuracy")
    assert rounds == curve.rounds_E.tolist() == [0, 2, 4]
    assert values == pytest.approx(curve.values_E.tolist())


def test_tensorboard_has_each_round_of_a_continued_run_once(
    tmp_path: Path, population: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends after round 3, and the last checkpoint is that of round 0: rounds 1 to 3 are repeated."""
    with monkeypatch.context() as patch:
        patch.setattr("manyeyes.training.loop.TrainingLoop.evaluate", _fail_in_round_4)
        with pytest.raises(MemoryError):
            train_tracked(population, tmp_path, "tensorboard", checkpoint_seconds=1000)
    result = train_tracked(population, tmp_path, "tensorboard", resume=True)
    rounds, values = recorded_points(tmp_path, "train_loss")
    assert rounds == [1, 2, 3, 4]
    assert values == pytest.approx([event["train_loss"] for event in result.events[1:]])


def _fail_in_round_4(loop: Any, event: dict[str, Any]) -> None:
    if event["round"] == 4:
        raise MemoryError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "requirement"), [("tensorboard", "tensorboard>=2.16"), ("mlflow", "mlflow>=3"), ("wandb", "wandb>=0.19")]
)
def test_a_tracker_that_is_not_installed_says_how_to_install_it(
    tmp_path: Path, population: Population, monkeypatch: pytest.MonkeyPatch, name: str, requirement: str
) -> None:
    assert name in names("tracker")
    with monkeypatch.context() as patch:
        for module in [module for module in sys.modules if module.startswith("torch.utils.tensorboard")]:
            patch.delitem(sys.modules, module)  # or it would not be imported again
        patch.setitem(sys.modules, name, None)
        with pytest.raises(ValueError, match=f"^{name} is not installed: run pip install '{requirement}'$"):
            train_tracked(population, tmp_path, name)
    run(population, fedavg(cohort_size=3), tmp_path)  # the same folder can be used


def test_trackers_need_a_folder(population: Population) -> None:
    with pytest.raises(ValueError, match="Trackers write to the run folder and this run has none: set folder"):
        run(population, fedavg(cohort_size=3), trackers=["tensorboard"])


def test_an_unknown_tracker_is_refused(population: Population, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Unknown trackers 'paper'.*choose tensorboard, mlflow, wandb"):
        run(population, fedavg(cohort_size=3), tmp_path / "run", trackers=["paper"])
    assert not (tmp_path / "run").exists()
