"""The writer of a run folder, which has all that is needed to repeat or continue the run; one process at a time."""

from __future__ import annotations

import json
import os
import shlex
import zlib
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from manyeyes.core.state import DivergenceError, ServerState
from manyeyes.io.files import (
    DISK_FULL,
    acquire_lock,
    errors_that_name,
    make_folder,
    owner_only,
    sync_folder,
    write_all,
)
from manyeyes.training import checkpoint as checkpoints
from manyeyes.training import run_files
from manyeyes.training.checkpoint import CallbackState, Checkpoint
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.description import environment
from manyeyes.training.run_checksums import write_checked_text
from manyeyes.training.run_files import Event, check_version, parse_event

OWNER_ONLY = 0o700


class RunFolder:
    """Writes the files of a run; a context manager that holds the folder's lock.

    While it is entered, only the owner can read what the process creates: a run tells much of its users.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.metrics = path, path / run_files.METRICS_FILE
        self.checkpoint, self.client_states = path / run_files.CHECKPOINT_FILE, path / run_files.CLIENT_STATES_FILE
        self.saved_round: int | None = None  # of the checkpoint
        self._lock: IO[bytes] | None = None
        self._stack = ExitStack()
        self._is_claimed = False  # whether the run in the folder is the current one

    def __enter__(self) -> RunFolder:
        if not self.checkpoint.exists():
            self._check_parents()
        with ExitStack() as stack:
            try:
                make_folder(self.path, OWNER_ONLY)
                stack.enter_context(owner_only())
                self._lock = stack.enter_context(acquire_lock(self.path, self.path / run_files.LOCK_FILE))
            except OSError as error:
                raise self._folder_error(error) from error
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        assert self._lock is not None, "the folder was not entered"
        file_error = self._file_error(error) if isinstance(error, OSError) and error.filename else None
        error = file_error or error
        if self._is_claimed and isinstance(error, Exception):
            file = run_files.DIVERGED_FILE if isinstance(error, DivergenceError) else run_files.FAILED_FILE
            with suppress(OSError):  # such as the full disk that the run has failed for
                self.write_text(file, f"{str(error) or type(error).__name__}\n")
        self._stack.close()  # the lock's file stays, so that no two processes lock two different files
        if file_error is not None:
            raise file_error from error

    def create(self, engine: Mapping[str, str] | None = None) -> None:
        """Record where a new run runs, and on what engine; refuse a folder that has a run already."""
        if self.checkpoint.exists() or (self.path / run_files.MODEL_FILE).exists():
            fix = f"continue it with resume={self.path} (in Python: resume=True), or choose another folder"
            raise ValueError(f"{self.path} already has a run: {fix}.")
        self.write_json(run_files.ENVIRONMENT_FILE, {**environment(), **(engine or {})})
        self._claim()

    def _check_parents(self) -> None:
        """Refuse a folder inside the folder of another run: reports and copies would take them for one."""
        for parent in self.path.resolve().parents:
            if any((parent / name).exists() for name in (run_files.CHECKPOINT_FILE, run_files.MODEL_FILE)):
                fix = f"choose a folder next to it, such as {parent}_{self.path.name}"
                raise ValueError(f"{self.path} is inside the run folder {parent}: {fix}.")

    def load(self, device: torch.device, fingerprint: str, mismatch: str = "") -> Checkpoint:
        """Return the last checkpoint, if it is of this run; `mismatch` says why it may not be."""
        check_version(self.path)
        if not self.checkpoint.exists():
            raise ValueError(f"{self.path} has no checkpoint to continue from: start a new run.")
        checkpoint = checkpoints.load(self.checkpoint, device)
        if checkpoint.fingerprint != fingerprint:
            fix = "its own settings, and with its rounds if a schedule or a privacy budget depends on them"
            problem = mismatch or f"is a run with other data, model, algorithm or seed: continue it with {fix}"
            raise ValueError(f"{self.path} {problem}.")
        check_metrics(self.metrics, checkpoint)  # before anything is written
        self._claim()
        self.saved_round = checkpoint.state.round
        return checkpoint

    def write_config(self, description: Mapping[str, Any]) -> None:
        """Write what the run is; a continued run may have more rounds than it began with."""
        self.write_text(run_files.CONFIG_FILE, yaml.safe_dump(dict(description), sort_keys=False))

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(content, indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        write_checked_text(self.path, name, text)

    def _folder_error(self, error: OSError) -> ValueError:
        """Return an error of the folder that also says what is saved, if it has a checkpoint."""
        file_error = self._file_error(error)
        if self.saved_round is None:
            return ValueError(f"The run folder {self.path} cannot be created: {error.strerror}.")
        return ValueError(f"The run folder {self.path} cannot be written: {file_error.strerror}.")

    def _file_error(self, error: OSError) -> OSError:
        """Return an error of a file that also says what of the run is saved and how to go on.

        A checkpoint may have got its name before the error, such as one of the sync that follows.
        """
        with suppress(ValueError, OSError, KeyError, TypeError):
            self.saved_round = checkpoints.read_round(self.checkpoint)
        if self.saved_round is None:
            saved, fix = "no round is saved", "start the run again"
        else:
            saved = f"the run is saved up to round {self.saved_round}"
            fix = f"continue with `manyeyes run {shlex.quote(f'resume={self.path}')}`"
        if error.errno in DISK_FULL:
            sizes = [path.stat().st_size for path in (self.checkpoint, self.client_states) if path.exists()]
            fix = f"free about {max(sum(sizes) / 1e6, 1):,.0f} MB and {fix}"
        return OSError(error.errno, f"{error.strerror}; {saved}: {fix}", error.filename)

    def _claim(self) -> None:
        """Take over the folder, without the failure of an earlier attempt; a process without the lock only reads."""
        self._is_claimed = self._lock is not None
        for name in (run_files.FAILED_FILE, run_files.DIVERGED_FILE) if self._is_claimed else ():
            (self.path / name).unlink(missing_ok=True)


def unused_path(path: Path) -> Path:
    """Return the path, or one with a number if two runs begin in the same second."""
    candidates = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in count(1))
    return next(candidate for candidate in candidates if not candidate.exists())


class Recorder:
    """Keeps the events of a run; with a folder, it writes them to `metrics.jsonl` and states to the checkpoint."""

    def __init__(
        self, folder: RunFolder | None = None, fingerprint: str = "", checkpoint: Checkpoint | None = None
    ) -> None:
        """Continue `metrics.jsonl` where the checkpoint was written: later lines belong to rounds that are repeated."""
        self.path = None if folder is None else folder.path  # None where nothing is written
        self._folder = folder
        self.events, self._fingerprint = list[Event](), fingerprint
        self._metrics: IO[bytes] | None = None
        if folder is None:
            return
        size = checkpoint.metrics_bytes if checkpoint else 0
        self._metrics_crc = check_metrics(folder.metrics, checkpoint) if checkpoint and size else 0
        self._metrics = folder.metrics.open("ab", buffering=0)  # or closing it would write again what has failed
        with errors_that_name(folder.metrics):
            self._metrics.truncate(size)
            self._metrics.seek(size)  # truncate leaves the position, which `save` records, behind the end
        sync_folder(folder.path)  # a checkpoint must not be there without the metrics file
        self.events = read_events(folder.metrics)

    def write(self, event: Event) -> None:
        self.events.append(event)
        if self._metrics is not None:
            line = json.dumps(event).encode() + b"\n"
            with errors_that_name(Path(self._metrics.name)):
                write_all(self._metrics, line)
            self._metrics_crc = zlib.crc32(line, self._metrics_crc)

    def save(self, state: ServerState, clients: ClientStateStore, callbacks: Mapping[str, CallbackState]) -> None:
        """Write the events and the clients' states to disk, then the checkpoint that refers to them."""
        if self._folder is None or self._metrics is None:
            return
        with errors_that_name(Path(self._metrics.name)):
            os.fsync(self._metrics.fileno())
        metrics = self._metrics.tell(), self._metrics_crc
        checkpoint = Checkpoint(state, clients.flush(), metrics[0], self._fingerprint, callbacks, metrics[1])
        checkpoints.save(self._folder.checkpoint, checkpoint)
        clients.commit()
        self._folder.saved_round = state.round

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()


def check_metrics(path: Path, checkpoint: Checkpoint) -> int:
    """Return the checksum of a metrics file up to where its checkpoint was written; raise ValueError if it differs."""
    data = b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        data = file.read(checkpoint.metrics_bytes)
    if len(data) < checkpoint.metrics_bytes:
        raise ValueError(f"{path} is shorter than its checkpoint says: restore it, or start a new run.")
    crc = zlib.crc32(data)
    if checkpoint.metrics_crc not in (crc, None):
        raise ValueError(f"{path} is damaged: it has changed since its checkpoint: restore it, or start a new run.")
    return crc


def read_events(path: Path) -> list[Event]:
    """Return the events of a metrics file; a last line that a crash cut off is ignored."""
    events = [parse_event(line) for line in path.read_bytes().split(b"\n")[:-1]]
    if None in events:
        raise ValueError(f"{path} is damaged at line {events.index(None) + 1}: restore it, or start a new run.")
    return [event for event in events if event is not None]
