"""A client that every rank would wait for is trained by several ranks, with the result of one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from manyeyes.algorithms import fedavg
from manyeyes.core.population import Population, SingleLabels
from manyeyes.engines.base import DistInfo
from manyeyes.engines.distributed import data_parallel
from manyeyes.engines.distributed.data_parallel import ClientGroup, GroupCache
from manyeyes.engines.distributed.engine import DistributedEngine
from manyeyes.engines.select import choose_engine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel, with_seeded_dropout
from tests.engines.engine_runs import make_setup

OVERRIDES = (
    "data.users=60",
    "rounds=3",
    "evaluate_every=0",
    "algorithm.cohort_size=4",
    "algorithm.batch_size=8",
    "client_weighting=uniform",
)
RUNS = {
    "example weights": ("model=linear", "preprocess.crop=28", "preprocess.flip_horizontal=true", "algorithm=fedir"),
    "momentum and median": (
        "model=linear",
        "algorithm.persist_state=true",
        "algorithm.momentum=0.9",
        "aggregator=median",
    ),
    "scaffold": ("model=linear", "algorithm=scaffold", "algorithm.lr=0.01"),
}
SCRIPT = """
import json, os, sys
from manyeyes.cli import main
from manyeyes.engines.distributed import data_parallel
from manyeyes.engines.distributed.engine import DistributedEngine
from manyeyes.engines.distributed.process_group import shutdown

data_parallel.SECONDS_PER_ALLREDUCE = data_parallel.SECONDS_PER_BYTE = 0.0  # so that clients are split
sizes, engine_in_group = [], DistributedEngine._engine_in_group

def record_size(self, members):
    sizes.append(len(members))
    return engine_in_group(self, members)

DistributedEngine._engine_in_group = record_size
codes = [main(["run", *overrides]) for overrides in json.loads(sys.argv[1])]
if os.environ["RANK"] == "0":
    print("group sizes", *sorted(set(sizes)))
shutdown(max(codes))
"""


@pytest.mark.slow
def test_ranks_that_train_a_client_together_equal_one_process(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    runs = [[*OVERRIDES, *overrides, f"folder=several/{name}"] for name, overrides in RUNS.items()]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    result = subprocess.run(
        [*torchrun, json.dumps(runs)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "group sizes 2" in result.stdout
    for name, overrides in RUNS.items():
        assert command("run", *OVERRIDES, *overrides, "engine=reference", f"folder=one/{name}").code == 0
        expected, actual = (load_file(tmp_path / parent / name / "model.safetensors") for parent in ("one", "several"))
        for key, tensor in expected.items():
            torch.testing.assert_close(actual[key], tensor, rtol=1e-5, atol=1e-6)


def test_each_example_of_a_batch_belongs_to_one_member() -> None:
    is_real_B = np.array([True, True, True, False, True, True, False])
    shards = np.stack([ClientGroup(rank, 3, lambda tensor: tensor).shard_mask(is_real_B) for rank in range(3)])
    assert shards.sum(0).tolist() == is_real_B.astype(int).tolist()
    assert shards.sum(1).tolist() == [2, 2, 1]


def test_the_gradient_of_a_group_by_hand() -> None:
    """Losses 1 and 4 with weights 1 and 3: (1 + 12) / 4; a member without examples adds nothing."""
    losses_B, weights_B = np.array([1.0, 4.0]), np.array([1.0, 3.0], np.float32)
    sent: list[Tensor] = []

    def gradient_of(selected_B: NDArray[np.bool_]) -> tuple[float, Tensor]:
        loss = float((losses_B * weights_B)[selected_B].sum() / weights_B[selected_B].sum())
        return loss, torch.tensor([loss, -loss])

    def all_reduce(tensor: Tensor) -> Tensor:
        sent.append(tensor)
        return torch.stack(sent).sum(0)

    for rank in range(3):
        group = ClientGroup(rank, 3, all_reduce)
        loss, gradient = group.gradient(gradient_of, np.array([True, True]), weights_B, torch.zeros(2))
    assert loss == pytest.approx(13 / 4)
    assert gradient.tolist() == pytest.approx([13 / 4, -13 / 4])
    assert sent[2].tolist() == [0, 0, 0]


def test_the_cost_of_an_all_reduce_by_hand() -> None:
    """A linear model of 3 classes on 8 x 8 images: 3 times 2 * 192 * 3 operations per image, and 579 floats to add."""
    cost = GroupCache(FlatModel(build_model("linear", 3, size=8, seed=0)), (8, 8)).allreduce_cost
    image_seconds = 3 * 2 * 192 * 3 * data_parallel.SECONDS_PER_FLOP
    allreduce_seconds = data_parallel.SECONDS_PER_ALLREDUCE + 4 * 579 * data_parallel.SECONDS_PER_BYTE
    assert cost == pytest.approx(allreduce_seconds / image_seconds)


def test_groups_do_not_depend_on_the_layers_that_a_rank_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks on different CPUs replace different layers; with different groups they would deadlock."""
    images, labels = np.zeros((4, 32, 32, 3), np.uint8), SingleLabels(np.zeros(4, np.int64), ("a", "b"))
    population = Population.from_arrays(images, labels, np.arange(4))
    module = nn.Sequential(nn.Flatten(2), nn.Linear(1024, 300), nn.Flatten(), nn.Linear(900, 2))  # 3 rows per image
    setup = replace(make_setup(module, population, engine="auto"), dist=DistInfo(0, 2))
    costs = []
    for is_slow in (False, True):
        monkeypatch.setattr("manyeyes.models.fast.cpu.mkl_is_slow", lambda is_slow=is_slow: is_slow)
        engine = DistributedEngine(choose_engine(fedavg(), setup), setup)
        assert engine._groups is not None
        costs.append(engine._groups.allreduce_cost)
    assert costs[0] == costs[1]


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.Dropout(0.5), nn.RReLU()])
def test_models_whose_batches_cannot_be_split_are_not_trained_by_groups(layer: nn.Module) -> None:
    module = with_seeded_dropout(nn.Sequential(layer, nn.Flatten(), nn.Linear(192, 3)))
    assert GroupCache(FlatModel(module), (8, 8)).allreduce_cost == math.inf
