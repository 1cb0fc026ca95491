"""Model selection: the model with the lowest loss on a validation split is tested and kept in the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from manyeyes.engines.evaluation import Evaluator
from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.events import Event

SELECTION_LOSS = "selection_loss"  # of the current model, in the events of evaluated rounds


class BestModel(Callback):
    """The weights with the lowest loss so far; the checkpoint has them too."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator  # of the validation split
        self.loss, self.round, self.weights = math.inf, -1, torch.zeros(0)

    def on_evaluate_start(self, run: TrainingRun, event: Event) -> None:
        state = run.state
        loss = self._evaluator.evaluate_global(state.weights).mean_loss
        if loss < self.loss:
            self.loss, self.round, self.weights = loss, state.round, state.weights
        event[SELECTION_LOSS] = loss

    def state_dict(self) -> Mapping[str, Any]:
        return {"loss": self.loss, "round": self.round, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss, self.round, self.weights = state["loss"], state["round"], state["weights"]
