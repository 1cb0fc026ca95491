"""The model of the lowest loss on a split of its own, which is the one that is tested and kept in the end."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from manyeyes.metrics import Accuracy, MultiLabelScores
from manyeyes.training.events import Event
from manyeyes.training.tensors import write_tensors

LOSS = "best_on_loss"  # of the model that is there, in the events of rounds that were evaluated


class BestModel:
    """Weights by the loss that they had; kept beside the checkpoint, so that a run which goes on still knows them."""

    def __init__(self, folder: Path | None, events: list[Event], device: torch.device) -> None:
        self.folder, self.loss, self.round, self.weights = folder, math.inf, -1, torch.zeros(0)
        for event in events:
            if event.get(LOSS, math.inf) < self.loss:
                self.loss, self.round = event[LOSS], event["round"]
        if folder is not None and self.round >= 0:
            path = self._path(self.round)
            if not path.exists():
                raise ValueError(f"{path} is not there, and the checkpoint counts on it: bring it back, or start anew")
            self.weights = load_file(path, str(device))["weights"]
        self._saved = self.round

    def update(self, round: int, loss: float, weights: Tensor) -> None:
        if loss < self.loss:
            self.loss, self.round, self.weights = loss, round, weights.clone()

    def save(self) -> None:
        """Before a checkpoint: bring the weights to disk, and leave those that the last one counts on."""
        if self.folder is not None and self.round != self._saved:
            write_tensors(self._path(self.round), {"weights": self.weights})

    def prune(self) -> None:
        """After a checkpoint: nothing counts on others any more."""
        if self.folder is not None and self.round != self._saved:
            for path in self.folder.glob("best-*.safetensors"):
                if path != self._path(self.round):
                    path.unlink()
            self._saved = self.round

    def _path(self, round: int) -> Path:
        assert self.folder is not None
        return self.folder / f"best-{round}.safetensors"


def loss(score: Accuracy | MultiLabelScores) -> float:
    """Return the mean loss: cross-entropy, or binary cross-entropy over examples and classes."""
    return score.mean_loss
