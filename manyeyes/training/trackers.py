"""Events: one line of JSON for each round, in `metrics.jsonl`, and to whatever else follows the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

Event = dict[str, Any]


class Tracker(Protocol):
    """Something that follows a run."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """Appends events; `end` is how far the file is known to be on disk."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """Continue a file after its first `keep` bytes: later lines belong to rounds that will be played again."""
        if keep and path.stat().st_size < keep:
            raise ValueError(f"{path} is shorter than its checkpoint says: bring it back, or start the run anew")
        self._file = path.open("ab")
        self._file.truncate(keep)

    def write(self, event: Event) -> None:
        self._file.write(json.dumps(event).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Bring all lines to disk and say how many bytes they are."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Curves for TensorBoard, in the run folder."""

    def __init__(self, folder: Path, purge_from: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("TensorBoard is not installed: pip install 'manyeyes[track]'") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge_from)

    def write(self, event: Event) -> None:
        for name, value in numbers(event).items():
            self._writer.add_scalar(name, value, event["round"])

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Curves for MLflow: to the server of MLFLOW_TRACKING_URI, else to a database in the run folder."""

    def __init__(self, folder: Path, purge_from: int) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise ValueError("MLflow is not installed: pip install 'manyeyes[track]'") from error
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri(f"sqlite:///{folder.resolve() / 'mlflow.db'}")
        self._mlflow = mlflow
        mlflow.start_run(run_name=folder.name)

    def write(self, event: Event) -> None:
        self._mlflow.log_metrics(numbers(event), step=event["round"])

    def close(self) -> None:
        self._mlflow.end_run()


class WeightsAndBiases:
    """Curves for Weights & Biases, which reads its own settings (WANDB_PROJECT, WANDB_MODE=offline, ...)."""

    def __init__(self, folder: Path, purge_from: int) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ValueError("Weights & Biases is not installed: pip install 'manyeyes[track]'") from error
        self._run = wandb.init(dir=str(folder), name=folder.name)

    def write(self, event: Event) -> None:
        self._run.log(numbers(event), step=event["round"])

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def numbers(event: Event) -> dict[str, float]:
    """What of an event can be drawn over rounds."""
    return {name: value for name, value in event.items() if name != "round" and isinstance(value, int | float)}


def read(path: Path) -> list[Event]:
    """All whole lines of a metrics file; a line cut by a crash is not one."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
