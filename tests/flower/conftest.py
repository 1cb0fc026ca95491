from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from manyeyes.core.population import Population, SingleLabels
from manyeyes.flower.app import FederationConfig
from manyeyes.flower.split import split
from tests.flower.fake_grid import FakeGrid, Node

BIN = Path(sys.executable).parent
TIMEOUT_SECONDS = 250.0  # long, because a machine may be busy
NUM_TRAIN_IMAGES = (4, 6, 9, 5)  # of each user; each has two more for test


@pytest.fixture(scope="session")
def population() -> Population:
    """Four users with 8 x 8 images of three classes; each user has training and test images."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(4), [num_train + 2 for num_train in NUM_TRAIN_IMAGES])
    splits = np.concatenate([["train"] * num_train + ["test"] * 2 for num_train in NUM_TRAIN_IMAGES])
    labels = rng.integers(3, size=len(users))
    pixels = rng.integers(0, 200, (len(users), 8, 8, 3))
    pixels[np.arange(len(users)), :, :, labels] += 55
    classes = SingleLabels(labels, ("red", "green", "blue"))
    return Population.from_arrays(pixels.astype(np.uint8), classes, users, split=splits)


@pytest.fixture(scope="session")
def stores(population: Population, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One store for each user of the population."""
    return split(population, tmp_path_factory.mktemp("stores") / "of", "single")


@pytest.fixture(scope="session")
def make_grid(stores: list[Path]) -> Callable[..., FakeGrid]:
    """Make a grid with nodes 10, 11, ..., one for each store, whose app has this configuration."""

    def make(config: FederationConfig, count: int = 4, **node_config: str) -> FakeGrid:
        def node(k: int) -> Node:
            return Node(Context(1, 10 + k, {"store": str(stores[k]), **node_config}, RecordDict(), dict(vars(config))))

        return FakeGrid({10 + k: node(k) for k in range(count)})

    return make


class Processes:
    """Processes of one federation, in a folder; all are killed after the test, with those that they start."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._running = folder, list[subprocess.Popen[bytes]]()
        (folder / "flower").mkdir()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")} | {
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, log: str, *argv: object) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as file:
            command = [str(BIN / str(argv[0])), *map(str, argv[1:])]
            self._running.append(
                subprocess.Popen(
                    command, cwd=self.folder, env=self.env, stdout=file, stderr=file, start_new_session=True
                )
            )
        return self._running[-1]

    def superlink(self, *options: object, connection: str) -> int:
        """Start a SuperLink, write its address where `flwr` finds it, and return its port."""
        (port,) = self.ports(1)
        address = f'[superlink]\ndefault = "trial"\n[superlink.trial]\naddress = "127.0.0.1:{port}"\n'
        (self.folder / "flower" / "config.toml").write_text(f"{address}{connection}\n")
        self.start("link.log", "flower-superlink", *options, "--port", port)
        self.wait(lambda: "Uvicorn running" in (self.folder / "link.log").read_text())
        return port

    def ports(self, count: int) -> list[int]:
        """Return free ports."""
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for free in sockets:
                free.bind(("127.0.0.1", 0))
            return [free.getsockname()[1] for free in sockets]

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def finish(self, *processes: subprocess.Popen[bytes]) -> None:
        """Wait for processes that should end with exit code 0."""
        assert [process.wait(TIMEOUT_SECONDS) for process in processes] == [0] * len(processes), self.logs()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_all(self) -> None:
        for process in self._running:
            self.kill(process)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    def events(self, folder: Path) -> list[dict[str, Any]]:
        path = folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.kill_all()
