"""A run folder: one process at a time, and all that is needed to repeat or continue the run."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch
import yaml

from manyeyes.core.state import DivergenceError
from manyeyes.io.atomic import write_text
from manyeyes.io.locks import acquire_lock
from manyeyes.training import checkpoint as checkpoints
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.environment import environment


@dataclass
class RunFolder:
    """The files of one run; used in a `with` statement, which holds the folder's lock."""

    path: Path
    _lock: IO[str] | None = None
    _owned: bool = False  # the run in it is the one that goes on now

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def clients(self) -> Path:
        return self.path / "clients.bin"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def diverged(self) -> Path:
        return self.path / "diverged.txt"

    @property
    def failed(self) -> Path:
        return self.path / "failed.txt"

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = acquire_lock(self.path, self.path / ".lock")
        except OSError as error:
            raise ValueError(f"the run folder {self.path} cannot be made: {error.strerror}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._lock is not None
        if self._owned and isinstance(error, Exception) and not isinstance(error, DivergenceError):
            with suppress(OSError):  # such as the full disk that the run has failed for
                write_text(self.failed, f"{str(error) or type(error).__name__}\n")
        self._lock.close()  # the lock ends with the file; the file stays, so that no two processes lock two files

    def create(self, computed_by: dict[str, str] | None = None) -> None:
        """Write down where this run runs; refuse a folder that already holds a run."""
        if self.checkpoint.exists() or self.model.exists():  # metrics alone: it ended before there was a state to keep
            raise ValueError(
                f"{self.path} already holds a run: continue it with resume={self.path}, or choose another folder"
            )
        write_text(self.path / "environment.json", json.dumps(environment() | (computed_by or {}), indent=1) + "\n")
        self._claim()

    def describe(self, about: dict[str, Any]) -> None:
        """Write down what this run is; a continued one may have more rounds than it began with."""
        write_text(self.path / "config.yaml", yaml.safe_dump(about, sort_keys=False))

    def load(self, device: torch.device, fingerprint: str) -> Checkpoint:
        """The last checkpoint, of the same run."""
        if not self.checkpoint.exists():
            raise ValueError(f"{self.path} has no checkpoint to continue from: start the run anew")
        found = checkpoints.load(self.checkpoint, device)
        if found.fingerprint != fingerprint:
            raise ValueError(
                f"{self.path} is a run of other data, model, algorithm or seed: continue it with its own settings, "
                "its rounds too where a schedule or a privacy budget spans them"
            )
        self._claim()
        return found

    def _claim(self) -> None:
        self._owned = self._lock is not None  # a process without the lock only reads
        if self._owned:
            self.failed.unlink(missing_ok=True)


def unused_path(path: Path) -> Path:
    """A folder that nothing has taken: `path`, or with a number where two runs begin in the same second."""
    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in count(1))
    return next(name for name in names if not name.exists())
