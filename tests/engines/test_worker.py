"""Workers of a real process: silent while it lives, and gone when it is."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engines.multiprocess_runs import NEEDS_WORKERS, alive

pytestmark = NEEDS_WORKERS

Until = Callable[[Callable[[], bool]], None]
Spawn = Callable[..., "subprocess.Popen[str]"]
SCRIPT = """
import atexit, json, os, sys, time
import numpy as np
import torch
from torch import nn
from manyeyes.core.state import Work
from manyeyes.core.round import plan_round
from manyeyes.algorithms import fedavg
from manyeyes.data.preprocess import Augment
from manyeyes.engines import workers
from manyeyes.engines.multiprocess.engine import Ranks
from manyeyes.models.flat import FlatModel
from manyeyes.core.population import Population, SingleLabels

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 2)

    def forward(self, images):
        print("a word of a worker")
        os.write(1, b"another")
        with open("working", "a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(float(sys.argv[1]))
        return self.fc(images.flatten(1))

workers.GLANCE = float(sys.argv[2])
atexit.register(print, "the end")
population = Population.of(np.zeros((8, 4, 4, 3), np.uint8), SingleLabels(np.zeros(8, int), ("a", "b")), np.arange(8) // 2)
algorithm, model = fedavg(cohort_size=4, batch_size=2), FlatModel(Model())
engine = Ranks(model, population, Augment(), torch.device("cpu"), 2)
try:
    plan, work = plan_round(algorithm, population, 0, 0), Work(algorithm.local, 0.1, None, None, None)
    engine.train(model.read(), plan, work, {})
    print("trained", flush=True)
    time.sleep(float(sys.argv[3]))
finally:
    print("finally")
"""


def workers_of(folder: Path) -> set[int]:
    file = folder / "working"
    return {int(word) for word in file.read_text().split()} if file.exists() else set()


@pytest.fixture
def run(spawn: Spawn, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The script in a group of processes of its own, as a shell starts it; none of the group outlives the test."""
    started = []

    def begin(**seconds: float) -> subprocess.Popen[str]:
        words = [
            str({"step": 0.0, "glance": 0.05, "rest": 0.0, **seconds}[name]) for name in ("step", "glance", "rest")
        ]
        started.append(spawn("-c", SCRIPT, *words, start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_workers_say_nothing_and_do_nothing_that_the_parent_has_yet_to_do(
    run: Any, tmp_path: Path, until: Until
) -> None:
    """It forgets to close them, too."""
    out, err = run().communicate(timeout=60)
    assert (out, err) == ("trained\nfinally\nthe end\n", "")
    until(lambda: not any(map(alive, workers_of(tmp_path))))


def test_workers_end_with_a_parent_that_is_killed_while_they_rest(run: Any, tmp_path: Path, until: Until) -> None:
    """They read the end of the pipe: none but the parent held its other end."""
    process = run(rest=60, glance=1000)
    assert process.stdout.readline() == "trained\n"
    found = workers_of(tmp_path)
    assert len(found) == 2 and all(map(alive, found))
    process.kill()
    began = time.monotonic()
    until(lambda: not any(map(alive, found)))
    assert time.monotonic() - began < 10


def test_workers_end_with_a_parent_that_is_killed_while_they_work(run: Any, tmp_path: Path, until: Until) -> None:
    process = run(step=60)
    until(lambda: len(workers_of(tmp_path)) == 2)
    process.kill()
    began = time.monotonic()
    until(lambda: not any(map(alive, workers_of(tmp_path))))
    assert time.monotonic() - began < 10


def test_ctrl_c_leaves_no_process(run: Any, tmp_path: Path, until: Until) -> None:
    process = run(step=60, glance=1000)
    until(lambda: len(workers_of(tmp_path)) == 2)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    out, err = process.communicate(timeout=30)
    assert out == "finally\nthe end\n"
    assert err.count("Traceback") == 1 and err.endswith("KeyboardInterrupt\n")
    assert not any(map(alive, workers_of(tmp_path)))
