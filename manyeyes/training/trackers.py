"""Events: one line of JSON for each round, in `metrics.jsonl`, and to whatever else follows the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from manyeyes.training.events import Event, scalars


class Tracker(Protocol):
    """Something that follows a run."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Curves for TensorBoard, in the run folder."""

    def __init__(self, folder: Path, purge_from: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("TensorBoard is not installed: pip install 'manyeyes[track]'") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge_from)

    def write(self, event: Event) -> None:
        for name, value in scalars(event).items():
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
        self._mlflow.log_metrics(scalars(event), step=event["round"])

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
        self._run.log(scalars(event), step=event["round"])

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, int], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
