"""What is reported of a round; with privacy, nothing that singles out a client."""

from __future__ import annotations

import math

import numpy as np

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.state import Cohort, RoundContext, RoundMetrics, ServerState, communication_cost

PRIVATE_NAME = "(private)"  # of a rejected client


def round_metrics(
    algorithm: Algorithm,
    population: Population,
    context: RoundContext,
    cohort: Cohort,
    new_state: ServerState,
    personal: Cohort,
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
    return RoundMetrics(
        round=new_state.round,
        train_loss=mean_loss,
        update_norm=update_norm,
        num_clients=len(clients),
        num_images=int(num_images_K.sum()),
        max_client_batches=int(num_steps_K.max()) if privacy is None else math.ceil(num_steps_K.mean()),
        rejected_clients=tuple(reasons) if privacy is None else (PRIVATE_NAME,) * len(reasons),
        rejection_reasons={name: reason for name, reason in reasons.items() if reason} if privacy is None else {},
        epsilon=None if privacy is None else privacy.epsilon_spent(new_state.round, new_state.privacy_state),
        clipping_norm=None if privacy is None else context.clipping_norm,
        bytes_up=bytes_up * len(clients),
        bytes_down=bytes_down * len(clients),
    )


def rejection_reasons(population: Population, cohort: Cohort, personal: Cohort) -> dict[str, str]:
    """Return why clients were rejected, by name; empty for an update that was not finite."""
    reasons = {
        population.user_name(client.user): cohort.result.rejection_reasons.get(client.client_id, "")
        for client in cohort.rejected
    }
    for client in personal.rejected:
        name = population.user_name(client.user)
        default = f"the personal model of user {name} was not finite and is discarded"
        reasons.setdefault(name, personal.result.rejection_reasons.get(client.client_id) or default)
    return reasons
