"""A run on cached features equals the run on images."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import manyeyes as me
from manyeyes.components.samplers import PoissonSampler
from manyeyes.components.weighting import WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.data.feature_file import FeatureFile
from manyeyes.data.preprocess import Preprocess
from manyeyes.models.flat import FlatModel
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.training.features import features_folder
from manyeyes.training.result import Result
from tests.training.small_runs import run

HEAD_ONLY = {"name": "lenet", "width": 4, "trainable": "last:1"}
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "fedavg": lambda: me.fedavg(cohort_size=3, batch_size=4, lr=0.1),
    "fedvc": lambda: me.fedvc(cohort_size=3, virtual_client_size=4, batch_size=4, lr=0.1),
    "fedir": lambda: me.fedir(cohort_size=3, batch_size=4, lr=0.1),
    "fedper": lambda: me.fedper(head_layers=1, cohort_size=3, batch_size=4, lr=0.1),
    "mimelite": lambda: me.mimelite(cohort_size=3, batch_size=4, lr=0.1),
    "finetuned": lambda: me.finetuned(cohort_size=3, batch_size=4, lr=0.1),
    "private": lambda: replace(
        me.fedavg(batch_size=4, lr=0.1),
        sampler=PoissonSampler(2),
        client_weighting=WeightUniformly(),
        privacy=CentralDP(epsilon=0, noise_multiplier=1.0, delta=1e-3, clipping_norm=0.1, reproducible_noise=True),
    ),
    "centralized": lambda: me.centralized(batch_size=4, lr=0.1),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return features_folder()


def weights(result: Result) -> torch.Tensor:
    return FlatModel(result.model).read()


def assert_equal(result: Result, expected: Result) -> None:
    torch.testing.assert_close(weights(result), weights(expected), rtol=1e-5, atol=1e-6)
    assert result.final == pytest.approx(expected.final, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_kind_of_run_ends_with_the_weights_and_scores_of_the_run_on_images(
    name: str, population: Population
) -> None:
    algorithm = ALGORITHMS[name]()
    settings: dict[str, Any] = {"model": HEAD_ONLY, "test": population}
    images, features = (run(population, algorithm, features=choice, **settings) for choice in ("off", "on"))
    assert_equal(features, images)


@pytest.mark.slow
def test_worker_processes_train_on_features(population: Population) -> None:
    algorithm = ALGORITHMS["fedavg"]()
    expected = run(population, algorithm, model=HEAD_ONLY, features="off")
    assert_equal(run(population, algorithm, model=HEAD_ONLY, features="on", engine="multiprocess"), expected)


def test_images_that_are_resized_have_features_of_their_own_for_training(population: Population) -> None:
    resize = Preprocess(crop=12, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    results = [
        run(population, ALGORITHMS["fedavg"](), model=HEAD_ONLY, preprocess=resize, features=choice, test=population)
        for choice in ("off", "on")
    ]
    assert_equal(results[1], results[0])


def test_the_saved_model_is_the_whole_one(population: Population, tmp_path: Path) -> None:
    result = run(population, ALGORITHMS["fedavg"](), tmp_path / "run", model=HEAD_ONLY, features="on")
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert saved.keys() == result.model.state_dict().keys()
    assert torch.equal(saved["fc3.weight"], result.model.get_parameter("fc3.weight"))
    assert (tmp_path / "run" / "example_images.json").exists()


def test_a_run_on_images_is_continued_on_features(population: Population, tmp_path: Path) -> None:
    algorithm, folder = ALGORITHMS["fedavg"](), tmp_path / "run"
    expected = run(population, algorithm, model=HEAD_ONLY, features="off")
    run(population, algorithm, folder, model=HEAD_ONLY, features="off", rounds=2)
    assert_equal(run(population, algorithm, folder, model=HEAD_ONLY, features="on", resume=True), expected)


def test_features_are_computed_once(population: Population, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(population, ALGORITHMS["fedavg"](), model=HEAD_ONLY, features="on")
    monkeypatch.setattr(FeatureFile, "compute", None)
    run(population, ALGORITHMS["fedvc"](), model=HEAD_ONLY, features="on")
    assert len([*cache.iterdir()]) == 1


@pytest.mark.parametrize("change", [{"seed": 1}, {"preprocess": Preprocess(mean=(0.1, 0.1, 0.1))}])
def test_other_weights_and_other_preprocessing_have_other_features(
    change: dict[str, Any], population: Population, cache: Path
) -> None:
    for settings in ({}, change):
        run(population, ALGORITHMS["fedavg"](), model=HEAD_ONLY, features="on", **settings)
    assert len([*cache.iterdir()]) == 2


def test_other_images_have_other_features(population: Population, cache: Path) -> None:
    run(population, ALGORITHMS["fedavg"](), model=HEAD_ONLY, features="on")
    population.images[0] += 1
    run(population, ALGORITHMS["fedavg"](), model=HEAD_ONLY, features="on")
    assert len([*cache.iterdir()]) == 2


def test_features_of_other_code_are_computed_again(
    population: Population, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run(population, ALGORITHMS["fedavg"](), model=HEAD_ONLY, features="on")
    (folder,) = cache.iterdir()
    values = np.fromfile(folder / "rows.bin", np.float32).reshape(len(population), -1)
    (folder / "chunks.bin").unlink()
    file = FeatureFile(folder, *values.shape)
    file.compute(np.arange(len(values)), lambda rows: values[rows] + 1, {}, lambda done, total: None)
    assert_equal(run(population, ALGORITHMS["fedavg"](), model=HEAD_ONLY, features="on"), expected)
    assert "are of other code: they are computed again" in capsys.readouterr().err


@pytest.mark.parametrize(("rounds", "is_used"), [(1, False), (20, True)])
def test_auto_computes_features_where_they_save_work(
    rounds: int, is_used: bool, population: Population, cache: Path
) -> None:
    run(population, ALGORITHMS["fedavg"](), model=HEAD_ONLY, rounds=rounds, evaluate_every=0)
    assert cache.exists() == is_used


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"preprocess": Preprocess(crop=6)}, "random crops and flips of images"),
        ({"preprocess": Preprocess(flip_vertical=True)}, "random crops and flips of images"),
        ({"model": {"name": "lenet", "width": 4}}, "a model of which all layers train"),
    ],
)
def test_features_that_would_not_be_exact_are_refused(
    settings: dict[str, Any], reason: str, population: Population, cache: Path
) -> None:
    with pytest.raises(ValueError, match=f"engine.features=on does not support {reason}: set engine.features=auto"):
        run(population, ALGORITHMS["fedavg"](), **{"model": HEAD_ONLY, "features": "on", **settings})
    assert not cache.exists()


@pytest.mark.parametrize(("choice", "rounds"), [("on", 4), ("auto", 20)])
def test_a_full_disk_is_told_and_auto_trains_on_images(
    choice: str,
    rounds: int,
    population: Population,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100, 0, 100))
    settings: dict[str, Any] = {"model": HEAD_ONLY, "features": choice, "rounds": rounds, "evaluate_every": 0}
    if choice == "on":
        with pytest.raises(OSError, match=r"0\.0 MB are free and features take 0.0 MB: free some, set XDG_CACHE_HOME"):
            run(population, ALGORITHMS["fedavg"](), **settings)
    else:
        run(population, ALGORITHMS["fedavg"](), **settings)
        assert "Features are not used, because they cannot be kept" in capsys.readouterr().err


@pytest.mark.slow
def test_data_embed_computes_the_features_of_a_run(command: Any, cache: Path, tiny: tuple[str, ...]) -> None:
    settings = (*tiny, "model=lenet", "model.width=4", "model.trainable=last:1")
    outcome = command("data", "embed", *settings)
    (folder,) = cache.iterdir()
    assert outcome.code == 0 and outcome.out.startswith(f"{folder}: ")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert command("run", *settings, "rounds=1", "folder=run").code == 0
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
