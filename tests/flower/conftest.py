from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from manyeyes.core.population import Population, SingleLabels
from manyeyes.flower.client import build_client
from manyeyes.flower.config import FederationConfig
from manyeyes.flower.split import split

BIN = Path(sys.executable).parent
LONG = 250.0  # seconds; a machine may be busy
SIZES = (4, 6, 9, 5)  # photos to train on; each user has two more to be tested on
Change = Callable[[Message, Message], Message | None]  # (task, answer) to what is sent instead


@pytest.fixture(scope="session")
def crowd() -> Population:
    """Four users of 8 x 8 photos in three classes, each with a part to train on and one to be tested on."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(4), [size + 2 for size in SIZES])
    parts = np.concatenate([["train"] * size + ["test"] * 2 for size in SIZES])
    labels = rng.integers(3, size=len(users))
    pixels = rng.integers(0, 200, (len(users), 8, 8, 3))
    pixels[np.arange(len(users)), :, :, labels] += 55
    classes = SingleLabels(labels, ("red", "green", "blue"))
    return Population.from_arrays(pixels.astype(np.uint8), classes, users, split=parts)


@pytest.fixture(scope="session")
def stores(crowd: Population, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return split(crowd, tmp_path_factory.mktemp("stores") / "of", "single")


@dataclass
class Node:
    """A client in this process; its answers go through `change` before they are sent."""

    context: Context
    app: ClientApp = field(default_factory=build_client)
    change: Change = lambda task, answer: answer


class FakeGrid(Grid):
    """Carries real messages, as the bytes that would travel, to clients in this process."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.nodes, self.sent = nodes, list[Message]()
        self.unreadable = set[int]()  # nodes whose answers are garbage
        self._answers: dict[str, Message] = {}
        self._numbers = count()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            task = over_the_wire(message)
            task.metadata.__dict__["_message_id"] = f"message {next(self._numbers)}"
            numbers.append(task.metadata.message_id)
            self.sent.append(task)
            node = self.nodes.get(task.metadata.dst_node_id)
            if node is None:
                continue
            try:
                answer = node.app(task, node.context)
            except Exception as error:
                answer = Message(Error(0, str(error)), reply_to=task)
            changed = node.change(task, answer)
            if changed is not None:
                self._answers[task.metadata.message_id] = over_the_wire(changed)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        numbers = [number for number in message_ids if number in self._answers]
        if any(self._answers[number].metadata.src_node_id in self.unreadable for number in numbers):
            raise RuntimeError("these bytes are no message")
        return [self._answers.pop(number) for number in numbers]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError


def over_the_wire(message: Message) -> Message:
    """The message that is read from the bytes of this one."""
    objects = {number: one.deflate() for number, one in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, objects)
    assert isinstance(arrived, Message)
    return arrived


@pytest.fixture(scope="session")
def federation(stores: list[Path]) -> Callable[..., FakeGrid]:
    """Nodes 10, 11, ... that hold the stores; `settings` are what the app was made with."""

    def make(rules: FederationConfig, count: int = 4, **node_config: str) -> FakeGrid:
        config = dict(vars(rules))
        return FakeGrid(
            {
                10 + k: Node(Context(1, 10 + k, {"store": str(stores[k]), **node_config}, RecordDict(), config))
                for k in range(count)
            }
        )

    return make


class Processes:
    """Of one federation, in a folder; none outlives the test, nor does any that they start."""

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

    def start(self, log: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as file:
            command = [str(BIN / str(words[0])), *map(str, words[1:])]
            self._running.append(
                subprocess.Popen(
                    command, cwd=self.folder, env=self.env, stdout=file, stderr=file, start_new_session=True
                )
            )
        return self._running[-1]

    def superlink(self, *options: object, connection: str) -> int:
        """Start a SuperLink, tell `flwr` where it is, and say its port."""
        (port,) = self.ports(1)
        address = f'[superlink]\ndefault = "trial"\n[superlink.trial]\naddress = "127.0.0.1:{port}"\n'
        (self.folder / "flower" / "config.toml").write_text(f"{address}{connection}\n")
        self.start("link.log", "flower-superlink", *options, "--port", port)
        self.wait(lambda: "Uvicorn running" in (self.folder / "link.log").read_text())
        return port

    def ports(self, count: int) -> list[int]:
        """That nobody listens to."""
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            return [one.getsockname()[1] for one in sockets]

    def wait(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG
        while not happened():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def finish(self, *processes: subprocess.Popen[bytes]) -> None:
        """Wait for those that should end well."""
        assert [process.wait(LONG) for process in processes] == [0] * len(processes), self.logs()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """At once, with all that it started."""
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
    found = Processes(tmp_path)
    yield found
    found.kill_all()
