"""A run folder: one process at a time writes it, and it has all that is needed to repeat or continue the run."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch
import yaml
from torch import Tensor

from manyeyes.core.population import Population
from manyeyes.core.state import DivergenceError
from manyeyes.io.atomic import write_text
from manyeyes.io.locks import acquire_lock
from manyeyes.training import checkpoint as checkpoints
from manyeyes.training import layout
from manyeyes.training.checkpoint import Checkpoint
from manyeyes.training.dataset_stats import dataset_stats
from manyeyes.training.environment import environment
from manyeyes.training.tensors import write_tensors


@dataclass
class RunFolder:
    """Writes the files of a run; a context manager that holds the folder's lock."""

    path: Path
    _lock: IO[str] | None = field(default=None, init=False)
    _is_claimed: bool = field(default=False, init=False)  # whether the run in the folder is the current one

    @property
    def checkpoint(self) -> Path:
        return self.path / layout.CHECKPOINT

    @property
    def client_states(self) -> Path:
        return self.path / layout.CLIENT_STATES

    @property
    def metrics(self) -> Path:
        return self.path / layout.METRICS

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = acquire_lock(self.path, self.path / layout.LOCK)
        except OSError as error:
            raise ValueError(f"The run folder {self.path} cannot be created: {error.strerror}.") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._lock is not None, "the folder was not entered"
        if self._is_claimed and isinstance(error, Exception) and not isinstance(error, DivergenceError):
            with suppress(OSError):  # such as the full disk that the run has failed for
                write_text(self.path / layout.FAILED, f"{str(error) or type(error).__name__}\n")
        self._lock.close()  # the file stays, so that no two processes lock two different files

    def create(self, engine: dict[str, str] | None = None) -> None:
        """Record where a new run runs, and on what engine; refuse a folder that has a run already."""
        if self.checkpoint.exists() or (self.path / layout.MODEL).exists():
            raise ValueError(
                f"{self.path} already has a run: continue it with resume={self.path}, or choose another folder."
            )
        self._write_json(layout.ENVIRONMENT, environment() | (engine or {}))
        self._claim()

    def load(self, device: torch.device, fingerprint: str) -> Checkpoint:
        """Return the last checkpoint, if it is of this run."""
        if (self.path / layout.OLD_DATASET_STATS).exists():
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
            content = yaml.safe_load((self.path / layout.CONFIG).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError):
            return {}
        return content if isinstance(content, dict) else {}

    def write_config(self, description: dict[str, Any]) -> None:
        """Write what the run is; a continued run may have more rounds than it began with."""
        write_text(self.path / layout.CONFIG, yaml.safe_dump(description, sort_keys=False))

    def write_dataset_stats(self, splits: dict[str, Population | None]) -> None:
        write_text(self.path / layout.DATASET_STATS, json.dumps(dataset_stats(splits)) + "\n")

    def write_model(self, tensors: dict[str, Tensor]) -> None:
        write_tensors(self.path / layout.MODEL, {name: tensor.contiguous() for name, tensor in tensors.items()})

    def write_privacy(self, report: dict[str, Any]) -> None:
        self._write_json(layout.PRIVACY, report)

    def write_tables(self, per_class: str, per_user: str) -> None:
        write_text(self.path / layout.PER_CLASS, per_class)
        write_text(self.path / layout.PER_USER, per_user)

    def write_divergence(self, reason: str) -> None:
        write_text(self.path / layout.DIVERGED, f"{reason}\n")

    def clear_divergence(self) -> None:
        """Remove what an earlier attempt of this run left when it diverged."""
        (self.path / layout.DIVERGED).unlink(missing_ok=True)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        write_text(self.path / name, json.dumps(content, indent=1) + "\n")

    def _claim(self) -> None:
        self._is_claimed = self._lock is not None  # a process without the lock only reads
        if self._is_claimed:
            (self.path / layout.FAILED).unlink(missing_ok=True)


def unused_path(path: Path) -> Path:
    """Return the path, or one with a number if two runs begin in the same second."""
    candidates = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in count(1))
    return next(candidate for candidate in candidates if not candidate.exists())
