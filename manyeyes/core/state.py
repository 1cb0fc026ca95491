"""The data of a round: what clients are sent and return, what server and clients keep, and what is reported."""

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.core.algorithm import Algorithm, ClientOptimizer, Compressor, Correction, Loss, OptState
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Population

ClientState = dict[str, Tensor]  # by the names below; the tensors of the optimizer state are numbered
ClientStates = Mapping[int, ClientState]  # by client id
MutableClientStates = MutableMapping[int, ClientState]

BYTES_PER_FLOAT = 4
PERSONAL_WEIGHTS, CORRECTION_STATE, OPT_STATE, RESIDUAL = "personal_weights", "correction", "opt_state", "residual"
PRIVATE_NAME = "(private)"  # of a rejected client
PERSONAL_MODEL_PREFIX = "personal_model/"  # of the names under which a client keeps the state of its personal model


class DivergenceError(RuntimeError):
    """Training produced weights that are not finite."""


@dataclass(frozen=True, eq=False)
class RoundContext:
    """What every client of a round is sent."""

    client_optimizer: ClientOptimizer
    lr: float | Tensor
    correction: Correction | None
    correction_state: Tensor | None  # [P]
    personal_mask: Tensor | None  # true where a value stays with the client [W]
    clipping_norm: float = math.inf  # updates of a larger norm are scaled down to it
    correct_personal_layers: bool = False  # whether the correction acts on personal layers too
    compressor: Compressor | None = None
    keep_client_updates: bool = False  # whether every client's update is returned, not only their sum
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
    clipping_reasons: Mapping[int, str] = field(default_factory=dict)  # by client id, where an update was scaled down


def in_plan_order(plan: RoundPlan, states: dict[int, ClientState]) -> dict[int, ClientState]:
    return {client.client_id: states[client.client_id] for client in plan.clients if client.client_id in states}


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of a round with the result of their training."""

    plan: RoundPlan
    result: CohortResult

    @staticmethod
    def empty(plan: RoundPlan, weights: Tensor) -> "Cohort":
        """Return the cohort of a round in which no client takes part."""
        none = np.zeros(0)
        result = CohortResult(torch.zeros_like(weights), None, none.astype(bool), none, none, {})
        return Cohort(replace(plan, clients=()), result)

    @property
    def accepted(self) -> list[ClientPlan]:
        return list(compress(self.plan.clients, self.result.accepted_K))

    @property
    def rejected(self) -> list[ClientPlan]:
        return list(compress(self.plan.clients, ~self.result.accepted_K))


@dataclass(frozen=True, eq=False)
class ServerState:
    """What the server keeps between rounds."""

    round: int
    weights: Tensor  # [W]
    opt_state: dict[str, Tensor]
    correction_state: Tensor | None
    privacy_state: dict[str, Tensor] = field(default_factory=dict)
    aggregator_state: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundMetrics:
    """What is reported of a round."""

    round: int
    train_loss: float
    update_norm: float  # mean over the accepted clients
    num_clients: int
    num_images: int  # examples trained on
    max_client_batches: int  # with privacy, which reveals no single client's: the mean client's
    rejected_clients: tuple[str, ...]  # names of the clients whose update was not accepted
    rejection_reasons: Mapping[str, str] = field(default_factory=dict)  # by name, where it is not "not finite"
    clipped_clients: Mapping[str, str] = field(default_factory=dict)  # why updates were scaled down, by name
    epsilon: float | None = None  # spent so far
    clipping_norm: float | None = None
    bytes_up: int = 0  # by all clients: updates, and what a correction uploads
    bytes_down: int = 0  # to all clients: weights, and what a correction's clients receive


def init_state(algorithm: Algorithm, weights: Tensor, num_trainable: int) -> ServerState:
    """Return the server state before round 1."""
    theta = weights[:num_trainable]
    return ServerState(
        round=0,
        weights=weights,
        opt_state=algorithm.server_optimizer.init(theta),
        correction_state=None if algorithm.correction is None else algorithm.correction.init(theta),
        privacy_state={} if algorithm.privacy is None else algorithm.privacy.init(),
        aggregator_state={} if algorithm.aggregator is None else algorithm.aggregator.init(weights),
    )


def make_client_state(
    personal_weights: Tensor | None, correction_state: Tensor | None, opt_state: OptState
) -> ClientState:
    """Return what a client keeps for its next round."""
    tensors = {PERSONAL_WEIGHTS: personal_weights, CORRECTION_STATE: correction_state}
    tensors |= {f"{OPT_STATE}{i}": tensor for i, tensor in enumerate(opt_state)}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def persisted_opt_state(client_state: ClientState) -> OptState:
    """Return the state of the client optimizer that a client carries from round to round."""
    return tuple(client_state[name] for name in sorted(client_state) if name.startswith(OPT_STATE))


def communication_cost(algorithm: Algorithm, num_shared: int, num_trainable: int) -> tuple[int, int]:
    """Return the bytes that one client uploads and downloads in a round."""
    correction, compressor = algorithm.correction, algorithm.compressor
    up = BYTES_PER_FLOAT * num_shared if compressor is None else compressor.num_bytes(num_shared)
    down = BYTES_PER_FLOAT * num_shared
    if correction is not None and correction.uploads:
        up += BYTES_PER_FLOAT * num_trainable
    if correction is not None and correction.downloads and correction.init(torch.zeros(0)) is not None:
        down += BYTES_PER_FLOAT * num_trainable
    return up, down


def round_metrics(
    algorithm: Algorithm,
    population: Population,
    context: RoundContext,
    cohort: Cohort,
    new_state: ServerState,
    personal: Cohort | None,
    num_trainable: int,
) -> RoundMetrics:
    """Return the metrics of a round."""
    privacy, result, clients = algorithm.privacy, cohort.result, cohort.plan.clients
    num_steps_K = np.array([c.num_steps for c in clients] or [0])
    num_images_K = np.array([c.num_images for c in clients])
    mean_loss = update_norm = math.nan
    min_clients = 1 if privacy is None else 2  # the mean of one client is that client's own
    if len(cohort.accepted) >= min_clients:
        weights_K = num_images_K[result.accepted_K]
        mean_loss = float(result.loss_K[result.accepted_K] @ weights_K / weights_K.sum())
        update_norm = float(result.norm_K[result.accepted_K].mean())
    num_shared = len(new_state.weights) if context.personal_mask is None else int((~context.personal_mask).sum())
    bytes_up, bytes_down = communication_cost(algorithm, num_shared, num_trainable)
    reasons = rejection_reasons(population, cohort, personal)
    clipping = result.clipping_reasons
    users = {client.client_id: client.user for client in clients if client.client_id in clipping}
    return RoundMetrics(
        round=new_state.round,
        train_loss=mean_loss,
        update_norm=update_norm,
        num_clients=len(clients),
        num_images=int(num_images_K.sum()),
        max_client_batches=int(num_steps_K.max()) if privacy is None else math.ceil(num_steps_K.mean()),
        rejected_clients=tuple(reasons) if privacy is None else (PRIVATE_NAME,) * len(reasons),
        rejection_reasons={name: reason for name, reason in reasons.items() if reason} if privacy is None else {},
        clipped_clients={population.user_name(users[id]): reason for id, reason in clipping.items()},
        epsilon=None if privacy is None else privacy.epsilon_spent(new_state.round, new_state.privacy_state),
        clipping_norm=None if privacy is None else context.clipping_norm,
        bytes_up=bytes_up * len(clients),
        bytes_down=bytes_down * len(clients),
    )


def rejection_reasons(population: Population, cohort: Cohort, personal: Cohort | None) -> dict[str, str]:
    """Return why clients were rejected, by name; empty for an update that was not finite."""
    reasons = {
        population.user_name(client.user): cohort.result.rejection_reasons.get(client.client_id, "")
        for client in cohort.rejected
    }
    if personal is None:
        return reasons
    for client in personal.rejected:
        name = population.user_name(client.user)
        default = f"the personal model of user {name} was not finite and is discarded"
        reasons.setdefault(name, personal.result.rejection_reasons.get(client.client_id) or default)
    return reasons
