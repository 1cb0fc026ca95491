"""Early stopping: end a run whose metric no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyeyes.core.registry import option, register, suggestion
from manyeyes.metrics.results import result_info
from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.events import Event
from manyeyes.training.model_selection import SELECTION_LOSS

MODES = ("auto", "max", "min")


@register("callback", "early_stopping")
@dataclass
class EarlyStopping(Callback):
    """Stops the run when a metric has not improved over several evaluations."""

    metric: str = option("loss", "metric of an evaluation")
    patience: int = option(5, "evaluations without an improvement after which the run stops")
    min_delta: float = option(0.0, "smallest change that counts as an improvement")
    mode: str = option("auto", "max if higher is better, min if lower is, or auto: by the metric")
    _best: float = field(default=math.nan, init=False, repr=False)
    _num_without: int = field(default=0, init=False, repr=False)
    _is_loaded: bool = field(default=False, init=False, repr=False)
    _lower_is_better: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"early_stopping.patience is {self.patience}: set it to at least 1.")
        if not self.min_delta >= 0:
            raise ValueError(f"early_stopping.min_delta is {self.min_delta}: set it to at least 0.")
        if self.mode not in MODES:
            raise ValueError(f"early_stopping.mode is {self.mode!r}: set it to auto, max or min.")

    def on_train_start(self, run: TrainingRun) -> None:
        self._lower_is_better = self.mode == "min"
        if self.mode == "auto":
            info = result_info(self.metric, run.metrics)
            self._lower_is_better = self.metric == SELECTION_LOSS or info.higher_is_better is False
        for event in () if self._is_loaded else run.events:  # a run may be resumed with early stopping added
            self._update(event)
        self._check(run)

    def on_evaluate(self, run: TrainingRun, event: Event) -> None:
        if self.metric not in event:
            raise ValueError(
                f"early_stopping.metric is {self.metric!r} and evaluations have no such metric"
                f"{suggestion(self.metric, event)}: set it to one of {', '.join(event)}."
            )
        self._update(event)
        self._check(run)

    def state_dict(self) -> Mapping[str, Any]:
        return {"best": self._best, "num_without": self._num_without}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best, self._num_without, self._is_loaded = state["best"], state["num_without"], True

    def _update(self, event: Event) -> None:
        if self.metric not in event:
            return
        value = event[self.metric]
        if math.isnan(self._best) or self._is_improvement(value):
            self._best, self._num_without = value, 0
        else:
            self._num_without += 1

    def _is_improvement(self, value: float) -> bool:
        change = self._best - value if self._lower_is_better else value - self._best
        return change > self.min_delta

    def _check(self, run: TrainingRun) -> None:
        if self._num_without >= self.patience:
            run.request_stop(f"{self.metric} has not improved on {self._best:.4g} in {self._num_without} evaluations")
