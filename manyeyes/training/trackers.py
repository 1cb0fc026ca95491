"""Trackers: callbacks that send the events of a run to TensorBoard, MLflow or Weights & Biases."""

import os
from dataclasses import dataclass
from pathlib import Path

from manyeyes.core.registry import register
from manyeyes.io.packages import import_optional
from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.headline import headline_metric
from manyeyes.training.run_files import Event

SCORE = "score"  # the headline of each run, whichever metric it is, so that trackers can compare runs
SCORE_METRIC = "score_metric"  # which metric that is


@register("tracker", "tensorboard")
@dataclass
class TensorBoard(Callback):
    """Curves for TensorBoard, in the run folder."""

    def on_train_start(self, run: TrainingRun) -> None:
        tensorboard = import_optional("torch.utils.tensorboard")
        # Rounds after a checkpoint are repeated.
        self._writer = tensorboard.SummaryWriter(str(_folder(run) / "tensorboard"), purge_step=run.round + 1)

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        for name, value in scalars(event).items():
            self._writer.add_scalar(name, value, event["round"])
        if not event["round"] and (metric := headline_metric(event)):
            self._writer.add_text(SCORE_METRIC, metric)

    def close(self) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()


@register("tracker", "mlflow")
@dataclass
class MLflow(Callback):
    """Curves for MLflow: to the server of MLFLOW_TRACKING_URI, else to a database in the run folder."""

    def on_train_start(self, run: TrainingRun) -> None:
        mlflow = import_optional("mlflow")
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri(f"sqlite:///{_folder(run).resolve() / 'mlflow.db'}")
        mlflow.start_run(run_name=_folder(run).name)
        self._mlflow = mlflow

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        self._mlflow.log_metrics(scalars(event), step=event["round"])
        if not event["round"] and (metric := headline_metric(event)):
            self._mlflow.set_tag(SCORE_METRIC, metric)

    def close(self) -> None:
        if hasattr(self, "_mlflow"):
            self._mlflow.end_run()


@register("tracker", "wandb")
@dataclass
class WeightsAndBiases(Callback):
    """Curves for Weights & Biases, which reads its own settings (WANDB_PROJECT, WANDB_MODE=offline, ...)."""

    def on_train_start(self, run: TrainingRun) -> None:
        wandb = import_optional("wandb")
        self._run = wandb.init(dir=str(_folder(run)), name=_folder(run).name)

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        if not event["round"] and (metric := headline_metric(event)):
            self._run.config[SCORE_METRIC] = metric
        self._run.log(scalars(event), step=event["round"])

    def close(self) -> None:
        if hasattr(self, "_run"):
            self._run.finish()


def _folder(run: TrainingRun) -> Path:
    assert run.folder is not None, "train() refuses trackers without a folder"
    return run.folder


def scalars(event: Event) -> dict[str, float]:
    """Return the metrics of an event that can be drawn over rounds; its headline is also SCORE, in every run."""
    values = {name: value for name, value in event.items() if name != "round" and isinstance(value, int | float)}
    metric = headline_metric(values)
    return values if metric is None else {SCORE: values[metric], **values}
