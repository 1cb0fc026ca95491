"""Run folders without training, and a dashboard that serves them."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml

from manyeyes.dashboard.index import RunIndex
from manyeyes.dashboard.server import application

Write = Callable[..., Path]
START = time.time()


def make_event(round: int, **values: Any) -> dict[str, Any]:
    """Return the event of a round of half a second and 100 images."""
    costs = {"num_images": 100, "max_client_batches": 5, "seconds": 0.5}
    return {"round": round, "train_loss": 2.0 / (round + 1), **costs, **values}


def append_events(folder: Path, *events: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def append() -> Callable[..., None]:
    """Append events to a run folder."""
    return append_events


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def write(root: Path) -> Write:
    """Create a run with this many completed rounds, evaluated after each; its files are `age` seconds old."""

    def create(name: str, completed: int = 10, *, rounds: int = 10, age: float = 3600, **settings: Any) -> Path:
        folder = root / name
        folder.mkdir(parents=True)
        algorithm = {"name": settings.pop("algorithm", "fedavg"), "lr": settings.pop("lr", 0.1)}
        config = {"algorithm": algorithm, "rounds": rounds, "seed": 0, "folder": str(folder), **settings}
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        (folder / "environment.json").write_text(json.dumps({"python": "3.11", "command": ["manyeyes", "run"]}))
        append_events(folder, *(make_event(round, accuracy=round / rounds, loss=1.0) for round in range(completed + 1)))
        if completed == rounds:
            (folder / "model.safetensors").touch()
        for path in folder.iterdir():
            os.utime(path, ((START if age >= 3600 else time.time()) - age,) * 2)  # one time for all old runs
        return folder

    return create


@pytest.fixture(scope="session")
def stopping() -> Iterator[list[threading.Thread]]:
    """Threads of servers that are stopping: waited for once, at the end, as each takes a fifth of a second."""
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join(10)


@pytest.fixture
def serve(root: Path, stopping: list[threading.Thread]) -> Iterator[Callable[..., str]]:
    """Start the dashboard on a free port in this process, and return its URL."""
    servers: list[uvicorn.Server] = []

    def start(token: str | None = None) -> str:
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        app = application(RunIndex(root), root.name, port, token)
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        servers.append(server)
        stopping.append(thread)
        return f"http://127.0.0.1:{port}/"

    yield start
    for server in servers:
        server.should_exit = True
