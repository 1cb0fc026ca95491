"""Workers of a process: they print nothing, and end when their parent has ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engines.multiprocess_runs import NEEDS_WORKERS, is_alive

pytestmark = NEEDS_WORKERS

Until = Callable[[Callable[[], bool]], None]
Spawn = Callable[..., "subprocess.Popen[str]"]
SCRIPT = """
import atexit, os, sys, time
import numpy as np
import torch
from torch import nn
from manyeyes.algorithms import fedavg
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.state import RoundContext
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions, EngineSetup
from manyeyes.engines.multiprocess import worker
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from manyeyes.models.flat import FlatModel

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 2)

    def forward(self, images):
        print("printed by a worker")
        os.write(1, b"written by a worker")
        with open("working", "a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(float(sys.argv[1]))
        return self.fc(images.flatten(1))

worker.WATCHDOG_SECONDS = float(sys.argv[2])
atexit.register(print, "exit handler")
labels = SingleLabels(np.zeros(8, int), ("a", "b"))
population = Population.from_arrays(np.zeros((8, 4, 4, 3), np.uint8), labels, np.arange(8) // 2)
algorithm, model = fedavg(cohort_size=4, batch_size=2), FlatModel(Model())
setup = EngineSetup(model, population, Preprocess(), torch.device("cpu"), EngineOptions(workers=2))
engine = MultiprocessEngine(setup)
try:
    context = RoundContext(algorithm.client_optimizer, 0.1, None, None, None)
    engine.train(model.read(), plan_round(algorithm, population, 0, 0), context, {})
    print("trained", flush=True)
    time.sleep(float(sys.argv[3]))
finally:
    print("finally")
"""


def read_worker_pids(folder: Path) -> set[int]:
    """Return the process ids of the workers that have computed a forward pass."""
    file = folder / "working"
    return {int(pid) for pid in file.read_text().split()} if file.exists() else set()


@pytest.fixture
def run(spawn: Spawn, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the script in its own process group, as a shell does; the group is killed after the test."""
    processes = []

    def start(step: float = 0.0, watchdog: float = 0.05, rest: float = 0.0) -> subprocess.Popen[str]:
        """Start it with the seconds of a step, between two checks of the watchdog, and after training."""
        processes.append(spawn("-c", SCRIPT, str(step), str(watchdog), str(rest), start_new_session=True))
        return processes[-1]

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_workers_print_nothing_and_run_no_exit_handlers_of_the_parent(run: Any, tmp_path: Path, until: Until) -> None:
    """The script does not close the engine, either."""
    out, err = run().communicate(timeout=60)
    assert (out, err) == ("trained\nfinally\nexit handler\n", "")
    until(lambda: not any(map(is_alive, read_worker_pids(tmp_path))))


@pytest.mark.slow
def test_idle_workers_end_when_their_parent_is_killed(run: Any, tmp_path: Path, until: Until) -> None:
    """They reach the end of the pipe, whose other end only the parent had."""
    process = run(rest=600, watchdog=1000)
    assert process.stdout.readline() == "trained\n"
    pids = read_worker_pids(tmp_path)
    assert len(pids) == 2 and all(map(is_alive, pids))
    process.kill()
    until(lambda: not any(map(is_alive, pids)))


@pytest.mark.slow
def test_training_workers_end_when_their_parent_is_killed(run: Any, tmp_path: Path, until: Until) -> None:
    process = run(step=600)
    until(lambda: len(read_worker_pids(tmp_path)) == 2)
    process.kill()
    until(lambda: not any(map(is_alive, read_worker_pids(tmp_path))))


@pytest.mark.slow
def test_ctrl_c_leaves_no_process(run: Any, tmp_path: Path, until: Until) -> None:
    process = run(step=60, watchdog=1000)
    until(lambda: len(read_worker_pids(tmp_path)) == 2)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    out, err = process.communicate(timeout=30)
    assert out == "finally\nexit handler\n"
    assert err.count("Traceback") == 1 and err.endswith("KeyboardInterrupt\n")
    assert not any(map(is_alive, read_worker_pids(tmp_path)))
