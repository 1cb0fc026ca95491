"""A client that all would wait for is trained by several ranks, and comes out as if by one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from manyeyes.core.population import Population, SingleLabels
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines import data_parallel as teams
from manyeyes.engines.base import DistInfo
from manyeyes.engines.distributed.data_parallel import ClientGroup, GroupCache
from manyeyes.engines.distributed.process_group import DistributedEngine
from manyeyes.engines.select import EngineOptions, choose_engine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel, with_seeded_dropout

WORK = (
    "data.users=60",
    "rounds=3",
    "evaluate_every=0",
    "algorithm.cohort_size=4",
    "algorithm.batch_size=8",
    "algorithm.weigh=equally",
)
JOBS = {
    "weighed": ("model=linear", "augment.crop=28", "augment.flip_horizontal=true", "algorithm=fedir"),
    "kept and apart": ("model=linear", "algorithm.keep=true", "algorithm.momentum=0.9", "aggregate=median"),
    "corrected": ("model=linear", "algorithm=scaffold", "algorithm.lr=0.01"),
}
SCRIPT = """
import json, os, sys
from manyeyes.cli import main
from manyeyes.engines.distributed.process_group import leave
from manyeyes.engines import distributed, teams
teams.PER_CALL = teams.PER_BYTE = 0.0  # as if to agree cost nothing
teamed, together = [], distributed.Distributed._together
def counted(self, *words):
    teamed.append(len(words[-1]))
    return together(self, *words)
distributed.Distributed._together = counted
codes = [main(["run", *words]) for words in json.loads(sys.argv[1])]
if os.environ["RANK"] == "0":
    print("teams", *sorted(set(teamed)))
leave(max(codes))
"""


def test_ranks_that_share_a_client_give_what_one_process_gives(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    jobs = [[*WORK, *words, f"folder=many/{name}"] for name, words in JOBS.items()]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    found = subprocess.run(
        [*torchrun, json.dumps(jobs)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "teams 2" in found.stdout
    for name, words in JOBS.items():
        assert command("run", *WORK, *words, "engine=reference", f"folder=one/{name}").code == 0
        one, many = (load_file(tmp_path / place / name / "model.safetensors") for place in ("one", "many"))
        for key, tensor in one.items():
            torch.testing.assert_close(many[key], tensor, rtol=1e-5, atol=1e-6)


def test_each_example_of_a_batch_is_with_one_member() -> None:
    real = np.array([True, True, True, False, True, True, False])
    parts = np.stack([ClientGroup(place, 3, lambda numbers: numbers).shard_mask(real) for place in range(3)])
    assert parts.sum(0).tolist() == real.astype(int).tolist()
    assert parts.sum(1).tolist() == [2, 2, 1]


def test_members_weigh_their_parts_by_hand() -> None:
    """Losses 1 and 4 with weights 1 and 3: (1 + 12) / 4; the one who has no example adds nothing."""
    losses, weights = np.array([1.0, 4.0]), np.array([1.0, 3.0], np.float32)
    sent: list[Tensor] = []

    def of(mine: Any) -> tuple[float, Tensor]:
        value = float((losses * weights)[mine].sum() / weights[mine].sum())
        return value, torch.tensor([value, -value])

    def add(numbers: Tensor) -> Tensor:
        sent.append(numbers)
        return torch.stack(sent).sum(0)

    for place in range(3):
        loss, slope = ClientGroup(place, 3, add).gradient(of, np.array([True, True]), weights, torch.zeros(2))
    assert loss == pytest.approx(13 / 4)
    assert slope.tolist() == pytest.approx([13 / 4, -13 / 4])
    assert sent[2].tolist() == [0, 0, 0]


def test_what_agreeing_costs_by_hand() -> None:
    """A linear model of 3 classes on 8 x 8 photos: 2 * 192 * 3 operations an image, thrice; 579 floats to add up."""
    found = GroupCache(FlatModel(build_model("linear", 3, size=8, seed=0)), (8, 8)).allreduce_cost
    image = 3 * 2 * 192 * 3 * teams.PER_FLOP
    assert found == pytest.approx((teams.PER_CALL + 4 * 579 * teams.PER_BYTE) / image)


def test_who_works_together_is_the_same_on_cores_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that exchange other layers than others would wait for each other for ever."""
    images, labels = np.zeros((4, 32, 32, 3), np.uint8), SingleLabels(np.zeros(4, np.int64), ("a", "b"))
    module = nn.Sequential(nn.Flatten(2), nn.Linear(1024, 300), nn.Flatten(), nn.Linear(900, 2))  # 3 rows an image
    population, model, found = Population.from_arrays(images, labels, np.arange(4)), FlatModel(module), []
    for slow in (False, True):
        monkeypatch.setattr("manyeyes.models.fast.cpu.mkl_is_slow", lambda slow=slow: slow)
        engine = choose_engine(
            "auto", model, population, Preprocess(), torch.device("cpu"), EngineOptions(num_processes=2)
        )
        rank = DistributedEngine(engine, DistInfo(0, 2), model)
        assert rank._teams is not None
        found.append(rank._teams.allreduce_cost)
    assert found[0] == found[1]


@pytest.mark.parametrize("part", [nn.BatchNorm2d(3), nn.Dropout(0.5), nn.RReLU()])
def test_batches_that_cannot_be_parted_are_not(part: nn.Module) -> None:
    module = with_seeded_dropout(nn.Sequential(part, nn.Flatten(), nn.Linear(192, 3)))
    assert GroupCache(FlatModel(module), (8, 8)).allreduce_cost == math.inf
