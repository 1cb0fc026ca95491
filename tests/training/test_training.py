"""What train leaves alone, what it writes, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from torch import nn

from manyeyes.algorithms import centralized, fedavg, local_only
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import FrozenBatchNorm2d, build_model
from tests.training.small_runs import run


def test_the_module_that_is_given_is_not_changed(people: Population) -> None:
    model = build_model("linear", 3, size=8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = run(people, fedavg(cohort_size=3), model=model).model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(trained.state_dict()["fc.weight"], before["fc.weight"])


def test_the_saved_model_is_the_one_returned(tmp_path: Path, people: Population) -> None:
    model = run(people, fedavg(cohort_size=3), tmp_path).model.state_dict()
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == model.keys()
    assert all(torch.equal(saved[name], model[name]) for name in model)


@pytest.mark.parametrize(
    "algorithm", [fedavg(cohort_size=3), centralized(), local_only()], ids=["fedavg", "pooled", "own"]
)
def test_a_folder_changes_nothing_of_the_training(tmp_path: Path, people: Population, algorithm: Algorithm) -> None:
    with_folder, without = run(people, algorithm, tmp_path).model, run(people, algorithm).model
    assert all(torch.equal(a, b) for a, b in zip(with_folder.parameters(), without.parameters(), strict=True))


def test_a_module_that_remembers_more_than_norms_do_is_refused(people: Population, tmp_path: Path) -> None:
    """Clients would find each other's power iteration, and a continued run another than it left."""
    iterated = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(192, 4))
    model = nn.Sequential(nn.Flatten(), iterated, nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"the model changes its buffer 1\.parametrizations\.weight\.0\._u when"):
        run(people, fedavg(cohort_size=3), tmp_path / "run", model=model)
    assert not (tmp_path / "run").exists()
    norms = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), FrozenBatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    assert run(people, fedavg(cohort_size=3), model=norms).events[-1]["round"] == 4


def test_nothing_is_printed_when_nobody_looks(people: Population, capfd: pytest.CaptureFixture[str]) -> None:
    run(people, fedavg(cohort_size=3), progress=None)
    assert capfd.readouterr() == ("", "")


def test_tensorboard_gets_the_curve_of_a_stopped_and_continued_run(tmp_path: Path, people: Population) -> None:
    run(people, fedavg(cohort_size=3), tmp_path, trackers=("tensorboard",))
    result = run(people, fedavg(cohort_size=3), tmp_path, trackers=("tensorboard",), rounds=6, resume=True)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [point.step for point in board.Scalars("accuracy")] == result.curve().rounds_E.tolist() == [0, 2, 4, 6]
    assert [point.value for point in board.Scalars("accuracy")] == pytest.approx(result.curve().values_E.tolist())
    assert [point.step for point in board.Scalars("train_loss")] == [1, 2, 3, 4, 5, 6]


def test_after_a_tracker_was_missing_the_same_folder_can_be_used(
    tmp_path: Path, people: Population, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(ValueError, match="TensorBoard is not installed"):
            run(people, fedavg(cohort_size=3), tmp_path, trackers=("tensorboard",))
    run(people, fedavg(cohort_size=3), tmp_path)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rounds": 0}, "rounds is 0: it must be at least 1"),
        ({"seed": -1}, "seed is -1: it must be at least 0"),
        ({"evaluate_every": -1}, "evaluate_every is -1"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds is nan"),
        ({"trackers": ("paper",)}, "tracker 'paper' is unknown: choose tensorboard, mlflow, wandb"),
        ({"engine": "steam"}, "engine 'steam' is unknown: choose auto or reference"),
        ({"prefetch": -1}, "prefetch is -1: it must be at least 0"),
        ({"resident": "moon"}, "resident is 'moon': choose auto, device, host"),
        ({"device": "abacus"}, "device 'abacus' is unknown: choose auto, cpu or cuda"),
        ({"augment": Preprocess(crop=20)}, "a crop of 20 pixels does not fit"),
        ({"algorithm": fedavg(cohort_size=7)}, "a cohort of 7 clients is asked of 6 users"),
        ({"model": "resnet81"}, "Unknown model 'resnet81'"),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_written(
    tmp_path: Path, people: Population, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(**{"people": people, "algorithm": fedavg(cohort_size=3), **settings}, folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
