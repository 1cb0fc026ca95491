"""A journal: where a run's events and states go, in memory or in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from manyeyes.core.state import ServerState
from manyeyes.training import checkpoint as checkpoints
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.events import Event, MetricsFile, read_events
from manyeyes.training.run_folder import RunFolder
from manyeyes.training.trackers import TRACKERS, Tracker


class Recorder(Protocol):
    """Keeps events, and states to go on from."""

    @property
    def events(self) -> list[Event]: ...

    @property
    def path(self) -> Path | None: ...

    def write(self, event: Event) -> None: ...

    def save(self, state: ServerState, clients: ClientStateStore) -> None: ...

    def close(self) -> None: ...


class InMemoryRecorder:
    """For a run without a folder: events alone."""

    path = None

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)

    def save(self, state: ServerState, clients: ClientStateStore) -> None:
        pass

    def close(self) -> None:
        pass


class FolderRecorder:
    """Events in `metrics.jsonl` (and trackers), states in the checkpoint."""

    def __init__(
        self, folder: RunFolder, trackers: tuple[str, ...], fingerprint: str, found: Checkpoint | None
    ) -> None:
        self.path = folder.path
        self._folder, self._fingerprint = folder, fingerprint
        self._metrics = MetricsFile(folder.metrics, found.metrics_bytes if found else 0)
        self.events = read_events(folder.metrics)
        done = found.state.round if found else 0
        self._trackers: list[Tracker] = [TRACKERS[name](folder.path, done + 1) for name in trackers]

    def write(self, event: Event) -> None:
        self.events.append(event)
        for follower in (self._metrics, *self._trackers):
            follower.write(event)

    def save(self, state: ServerState, clients: ClientStateStore) -> None:
        """First the events and the clients' records, then the checkpoint that counts on them."""
        written, index = self._metrics.sync(), clients.flush()
        checkpoints.save(self._folder.checkpoint, Checkpoint(state, index, written, self._fingerprint))
        clients.commit()

    def close(self) -> None:
        for follower in (self._metrics, *self._trackers):
            follower.close()
