"""Recorders: where the events and states of a run go, in memory or in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from manyeyes.core.state import ServerState
from manyeyes.training import checkpoint as checkpoints
from manyeyes.training.checkpoint import CallbackState, Checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.events import Event, MetricsFile, read_events
from manyeyes.training.run_folder import RunFolder


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
