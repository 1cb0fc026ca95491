"""A run folder: one process at a time writes it, and it has all that is needed to repeat or continue the run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

import torch
import yaml
from torch import Tensor

from manyeyes.core.population import Population
from manyeyes.core.state import DivergenceError, ServerState
from manyeyes.io.files import acquire_lock, write_text
from manyeyes.training import checkpoint as checkpoints
from manyeyes.training.checkpoint import CallbackState, Checkpoint, write_tensors
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.dataset_stats import dataset_stats
from manyeyes.training.environment import environment
from manyeyes.training.run_files import (
    CHECKPOINT_FILE,
    CLIENT_STATES_FILE,
    CONFIG_FILE,
    DATASET_STATS_FILE,
    DIVERGED_FILE,
    ENVIRONMENT_FILE,
    FAILED_FILE,
    LOCK_FILE,
    METRICS_FILE,
    MODEL_FILE,
    OLD_DATASET_STATS_FILE,
    PER_CLASS_FILE,
    PER_USER_FILE,
    PRIVACY_FILE,
    Event,
)


@dataclass
class RunFolder:
    """Writes the files of a run; a context manager that holds the folder's lock."""

    path: Path
    _lock: IO[str] | None = field(default=None, init=False)
    _is_claimed: bool = field(default=False, init=False)  # whether the run in the folder is the current one

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT_FILE

    @property
    def client_states(self) -> Path:
        return self.path / CLIENT_STATES_FILE

    @property
    def metrics(self) -> Path:
        return self.path / METRICS_FILE

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = acquire_lock(self.path, self.path / LOCK_FILE)
        except OSError as error:
            raise ValueError(f"The run folder {self.path} cannot be created: {error.strerror}.") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._lock is not None, "the folder was not entered"
        if self._is_claimed and isinstance(error, Exception) and not isinstance(error, DivergenceError):
            with suppress(OSError):  # such as the full disk that the run has failed for
                write_text(self.path / FAILED_FILE, f"{str(error) or type(error).__name__}\n")
        self._lock.close()  # the file stays, so that no two processes lock two different files

    def create(self, engine: dict[str, str] | None = None) -> None:
        """Record where a new run runs, and on what engine; refuse a folder that has a run already."""
        if self.checkpoint.exists() or (self.path / MODEL_FILE).exists():
            raise ValueError(
                f"{self.path} already has a run: continue it with resume={self.path}, or choose another folder."
            )
        self._write_json(ENVIRONMENT_FILE, environment() | (engine or {}))
        self._claim()

    def load(self, device: torch.device, fingerprint: str) -> Checkpoint:
        """Return the last checkpoint, if it is of this run."""
        if (self.path / OLD_DATASET_STATS_FILE).exists():
            raise ValueError(f"{self.path} is a run of an earlier version of manyeyes: train it again with this one.")
        if not self.checkpoint.exists():
            raise ValueError(f"{self.path} has no checkpoint to continue from: start a new run.")
        checkpoint = checkpoints.load(self.checkpoint, device)
        if checkpoint.fingerprint != fingerprint:
            raise ValueError(
                f"{self.path} is a run with other data, model, algorithm or seed: continue it with its own settings, "
                "and with its rounds if a schedule or a privacy budget depends on them."
            )
        self._claim()
        return checkpoint

    def read_config(self) -> dict[str, Any]:
        """Return the description of the run; empty if there is none."""
        try:
            content = yaml.safe_load((self.path / CONFIG_FILE).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError):
            return {}
        return content if isinstance(content, dict) else {}

    def write_config(self, description: dict[str, Any]) -> None:
        """Write what the run is; a continued run may have more rounds than it began with."""
        write_text(self.path / CONFIG_FILE, yaml.safe_dump(description, sort_keys=False))

    def write_dataset_stats(self, splits: dict[str, Population | None]) -> None:
        write_text(self.path / DATASET_STATS_FILE, json.dumps(dataset_stats(splits)) + "\n")

    def write_model(self, tensors: dict[str, Tensor]) -> None:
        write_tensors(self.path / MODEL_FILE, {name: tensor.contiguous() for name, tensor in tensors.items()})

    def write_privacy(self, report: dict[str, Any]) -> None:
        self._write_json(PRIVACY_FILE, report)

    def write_tables(self, per_class: str, per_user: str) -> None:
        write_text(self.path / PER_CLASS_FILE, per_class)
        write_text(self.path / PER_USER_FILE, per_user)

    def write_divergence(self, reason: str) -> None:
        write_text(self.path / DIVERGED_FILE, f"{reason}\n")

    def clear_divergence(self) -> None:
        """Remove what an earlier attempt of this run left when it diverged."""
        (self.path / DIVERGED_FILE).unlink(missing_ok=True)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        write_text(self.path / name, json.dumps(content, indent=1) + "\n")

    def _claim(self) -> None:
        self._is_claimed = self._lock is not None  # a process without the lock only reads
        if self._is_claimed:
            (self.path / FAILED_FILE).unlink(missing_ok=True)


def unused_path(path: Path) -> Path:
    """Return the path, or one with a number if two runs begin in the same second."""
    candidates = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in count(1))
    return next(candidate for candidate in candidates if not candidate.exists())


class Recorder(Protocol):
    """Keeps events, and states to continue from."""

    @property
    def events(self) -> list[Event]: ...

    @property
    def path(self) -> Path | None:
        """The folder; None where nothing is written."""

    def write(self, event: Event) -> None: ...

    def save(self, state: ServerState, clients: ClientStateStore, callbacks: Mapping[str, CallbackState]) -> None: ...

    def close(self) -> None: ...


class InMemoryRecorder:
    """Keeps events only: for a run without a folder, and for the processes that do not write."""

    path = None

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)

    def save(self, state: ServerState, clients: ClientStateStore, callbacks: Mapping[str, CallbackState]) -> None:
        pass

    def close(self) -> None:
        pass


class FolderRecorder:
    """Writes events to `metrics.jsonl` and states to the checkpoint of a run folder."""

    def __init__(self, folder: RunFolder, fingerprint: str, checkpoint: Checkpoint | None = None) -> None:
        self.path = folder.path
        self._folder, self._fingerprint = folder, fingerprint
        self._metrics = MetricsFile(folder.metrics, checkpoint.metrics_bytes if checkpoint else 0)
        self.events = read_events(folder.metrics)

    def write(self, event: Event) -> None:
        self.events.append(event)
        self._metrics.write(event)

    def save(self, state: ServerState, clients: ClientStateStore, callbacks: Mapping[str, CallbackState]) -> None:
        """Write the events and the clients' records, then the checkpoint that refers to them."""
        metrics_bytes, index = self._metrics.sync(), clients.flush()
        checkpoint = Checkpoint(state, index, metrics_bytes, self._fingerprint, callbacks)
        checkpoints.save(self._folder.checkpoint, checkpoint)
        clients.commit()

    def close(self) -> None:
        self._metrics.close()


class MetricsFile:
    """Appends events to a file."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Continue a file after its first `keep_bytes` bytes: later lines belong to rounds that are repeated."""
        if keep_bytes and path.stat().st_size < keep_bytes:
            raise ValueError(f"{path} is shorter than its checkpoint says: restore the file, or start a new run.")
        self._file = path.open("ab")
        self._file.truncate(keep_bytes)

    def write(self, event: Event) -> None:
        self._file.write(json.dumps(event).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Flush all lines to disk and return the size of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> list[Event]:
    """Return the events of a metrics file; a last line that a crash cut off is ignored."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
