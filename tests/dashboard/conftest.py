"""Run folders without training, and a board that serves them."""

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


def event(round: int, **more: Any) -> dict[str, Any]:
    """A round of half a second that saw 100 images."""
    return {"round": round, "train_loss": 2.0 / (round + 1), "images": 100, "batches": 5, "seconds": 0.5, **more}


def add(folder: Path, *events: dict[str, Any]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in events)


@pytest.fixture
def append() -> Callable[..., None]:
    """Write events into a run's folder."""
    return add


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "runs"
    found.mkdir()
    return found


@pytest.fixture
def write(root: Path) -> Write:
    """A run with so many rounds done of 10, evaluated after each; its files are an hour old unless said otherwise."""

    def made(name: str, done: int = 10, *, rounds: int = 10, age: float = 3600, **settings: Any) -> Path:
        folder = root / name
        folder.mkdir(parents=True)
        algorithm = {"name": settings.pop("algorithm", "fedavg"), "lr": settings.pop("lr", 0.1)}
        about = {"algorithm": algorithm, "rounds": rounds, "seed": 0, "folder": str(folder), **settings}
        (folder / "config.yaml").write_text(yaml.safe_dump(about, sort_keys=False))
        (folder / "environment.json").write_text(json.dumps({"python": "3.11", "command": ["manyeyes", "run"]}))
        add(folder, *(event(round, accuracy=round / rounds, loss=1.0) for round in range(done + 1)))
        if done == rounds:
            (folder / "model.safetensors").touch()
        for path in folder.iterdir():
            os.utime(path, (time.time() - age,) * 2)
        return folder

    return made


@pytest.fixture
def serve(root: Path) -> Iterator[Callable[..., str]]:
    """Start the board on a port that is free, in this process; returns its address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(token: str | None = None) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        app = application(RunIndex(root), root.name, port, token)
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{port}/"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(10)
