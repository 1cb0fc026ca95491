"""`benchmarks/pretrained.py`: what its clients have, and which runs it plans."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pretrained import GRIDS, LENET, PLACES, Case, Record, like_training, sweep
from manyeyes.config.compose import compose_config

HEAD = Case("cifar10", 0.5, "mobilenet_v2", "head", "FedAvg", 96, 300)


def test_a_client_has_the_same_share_of_test_and_training_images_of_each_class() -> None:
    train_classes, train_users = np.repeat([0, 1], 8), np.array([0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    users = like_training(np.array([0, 0, 0, 0, 1, 1]), train_classes, train_users)
    assert np.bincount(users[:4]).tolist() == [1, 3]  # 2 of 8 and 6 of 8 training images of class 0
    assert users[4:].tolist() == [0, 0]


def test_the_learning_rate_is_that_of_the_best_run_on_held_out_images(tmp_path: Path) -> None:
    rows = {
        str(lr): {**vars(HEAD), "lr": lr, "accuracy": accuracy, "algorithm": algorithm}
        for lr, accuracy, algorithm in ((0.01, 0.5, "FedAvg"), (0.03, 0.7, "FedAvg"), (0.1, 0.9, "FedPer"))
    }
    (tmp_path / "record.json").write_text(json.dumps({"learning_rates": rows}))
    assert Record.open(tmp_path / "record.json").best_lr(HEAD) == 0.03


@pytest.mark.slow
def test_the_settings_of_every_kind_of_run_are_valid() -> None:
    cases = [case for grid in GRIDS.values() for case in grid()]
    for case in {(case.trains, case.algorithm, case.alpha is None): case for case in cases}.values():
        settings = compose_config([*case.inputs(*PLACES), *case.training()])
        assert settings.model.pretrained == (None if case.model == LENET else True)


@pytest.mark.parametrize("grid", GRIDS)
def test_runs_of_a_grid_have_different_names(grid: str) -> None:
    cases = [*GRIDS[grid]()]
    assert len({case.name for case in (*cases, *sweep(cases))}) == len(cases) + len(sweep(cases))
