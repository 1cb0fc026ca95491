"""The engine: what turns a round's plan into the sum of the clients' updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.core.algorithm import ClientOptimizer, Compressor, Correction, Loss, PersonalLayers
from manyeyes.core.plan import RoundPlan
from manyeyes.core.state import ClientState, ClientStates


@dataclass(frozen=True, eq=False)
class RoundContext:
    """What every client of a round is sent."""

    client_optimizer: ClientOptimizer
    lr: float | Tensor
    correction: Correction | None
    correction_state: Tensor | None  # [P]
    personal_mask: Tensor | None  # true where a value stays with the client [W]
    clipping_norm: float = math.inf  # longer updates are scaled down to it
    correct_personal_layers: bool = False  # whether the correction acts on personal layers too
    compressor: Compressor | None = None
    keep_client_updates: bool = False  # whether every client's update is wanted, not only their sum
    loss: Loss | None = None  # None: by the kind of labels


@dataclass(frozen=True, eq=False)
class CohortResult:
    """The result of a cohort's local training: sums over the accepted clients, and statistics of each client."""

    update_W: Tensor  # sum of weight * (theta_t - theta)
    uploads_P: Tensor | None  # sum of what corrections upload
    accepted_K: NDArray[np.bool_]  # false: the client's update was not finite
    loss_K: NDArray[np.float64]
    norm_K: NDArray[np.float64]
    client_states: dict[int, ClientState]  # new states of the accepted clients, by client id
    updates_KW: Tensor | None = None  # each client's update, with `keep_client_updates`
    rejection_reasons: Mapping[int, str] = field(default_factory=dict)  # by client id, where it is not "not finite"


def empty_result(weights: Tensor) -> CohortResult:
    """Return the result of a round in which no client takes part."""
    none = np.zeros(0)
    return CohortResult(torch.zeros_like(weights), None, none.astype(bool), none, none, {})


class Engine(Protocol):
    """Trains the clients of a plan; a context manager that holds processes and device memory."""

    @property
    def num_trainable(self) -> int:
        """P, the number of trainable values."""

    @property
    def num_augment_uniforms(self) -> int:
        """How many random numbers the augmentation of one example takes."""

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        """Return where the weights belong to personal layers [W]; the same tensor for the same layers."""

    def prefetch(self, plan: RoundPlan) -> None:
        """Prepare what can be prepared for a coming round."""

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Train the clients of a round, and return the sum of their updates."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release processes and device memory."""
