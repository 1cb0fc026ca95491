"""The round: Algorithm 1 of Hsu, Qi and Brown (2020), the same for every algorithm, engine and federation."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.algorithm import Aggregator, Algorithm, Engine, ServerStep
from manyeyes.core.guarantee import check_plan, check_private, private_update
from manyeyes.core.personal_models import merge_client_states, train_personal_models
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population
from manyeyes.core.rng import derive_key
from manyeyes.core.state import (
    ClientState,
    ClientStates,
    Cohort,
    DivergenceError,
    MutableClientStates,
    RoundContext,
    RoundMetrics,
    ServerState,
    round_metrics,
)


def run_round(
    algorithm: Algorithm,
    state: ServerState,
    population: Population,
    engine: Engine,
    clients: MutableClientStates,
    seed: int,
    plan: RoundPlan | None = None,
    noise_seed: int | None = None,
) -> tuple[ServerState, RoundMetrics]:
    """Run one round: sample clients, train locally, aggregate, step the server.

    Parameters
    ----------
    clients
        What clients keep between rounds; the states of this round's clients are replaced.
    plan
        The round's plan, if it exists already.
    noise_seed
        The seed of privacy noise, where several processes must add the same; by default the operating system's.
    """
    plan = plan or plan_round(algorithm, population, seed, state.round, engine.num_augment_uniforms)
    assert (plan.seed, plan.round) == (seed, state.round), "the plan belongs to another round"
    if algorithm.privacy is not None:
        check_private(algorithm)
        check_plan(plan)
    client_states = kept_states(algorithm, plan, clients)
    context = make_context(algorithm, state, engine)

    if plan.clients:
        cohort = Cohort(plan, engine.train(state.weights, plan, context, client_states))
    else:
        cohort = Cohort.empty(plan, state.weights)
    update, state = aggregate_updates(algorithm, state, context, cohort, noise_seed)
    new_state = step_server(algorithm, state, context, cohort, population, update, engine.num_trainable)
    personal = None
    if algorithm.personal_model is not None and plan.clients:
        personal = train_personal_models(algorithm, algorithm.personal_model, state, plan, engine, client_states)
    metrics = round_metrics(algorithm, population, context, cohort, new_state, personal, engine.num_trainable)
    check_finite(algorithm, new_state, metrics)
    new_states = cohort.result.client_states
    clients.update(new_states if personal is None else merge_client_states(client_states, new_states, personal))
    return new_state, metrics


def kept_states(algorithm: Algorithm, plan: RoundPlan, clients: ClientStates) -> dict[int, ClientState]:
    """Return what the clients of a plan have kept from earlier rounds, by client."""
    ids = [client.client_id for client in plan.clients] if algorithm.keeps_client_states else []
    return {client_id: client_state for client_id in ids if (client_state := clients.get(client_id))}


def check_finite(algorithm: Algorithm, state: ServerState, metrics: RoundMetrics) -> None:
    """Refuse weights and losses that are not finite; with privacy, the loss of one client must not end a run."""
    has_loss = algorithm.privacy is None and not math.isnan(metrics.update_norm)
    if (has_loss and not math.isfinite(metrics.train_loss)) or not bool(torch.isfinite(state.weights).all()):
        raise DivergenceError(f"the weights after round {state.round} are no longer finite")


def make_context(algorithm: Algorithm, state: ServerState, engine: Engine) -> RoundContext:
    """Return what every client of the round is sent."""
    privacy, correction = algorithm.privacy, algorithm.correction
    return RoundContext(
        client_optimizer=algorithm.client_optimizer,
        lr=algorithm.client_optimizer.learning_rate(state.round),
        correction=correction,
        correction_state=state.correction_state if correction is not None and correction.downloads else None,
        personal_mask=None if algorithm.personal_layers is None else engine.personal_mask(algorithm.personal_layers),
        clipping_norm=math.inf if privacy is None else privacy.clipping_bound(state.privacy_state),
        compressor=algorithm.compressor,
        keep_client_updates=algorithm.aggregator is not None and privacy is None,
        loss=algorithm.loss,
    )


def step_server(
    algorithm: Algorithm,
    state: ServerState,
    context: RoundContext,
    cohort: Cohort,
    population: Population,
    update_W: Tensor,
    num_trainable: int,
) -> ServerState:
    """Step the server optimizer and the correction; BatchNorm statistics are only averaged."""
    theta, statistics = state.weights[:num_trainable], state.weights[num_trainable:]
    update = update_W[:num_trainable]
    new_theta, opt_state = algorithm.server_optimizer.step(theta, update, state.opt_state, state.round)
    correction_state = state.correction_state
    if algorithm.correction is not None and cohort.accepted and algorithm.privacy is None:
        step = ServerStep(
            theta_before=theta,
            theta_after=new_theta,
            update=update,
            uploads=cohort.result.uploads_P,
            num_sampled=len(cohort.plan.clients),
            num_accepted=len(cohort.accepted),
            num_clients=len(population.user_ids),
        )
        correction_state, new_theta = algorithm.correction.server_update(correction_state, step)
    return replace(
        state,
        round=state.round + 1,
        weights=torch.cat([new_theta, statistics - update_W[num_trainable:]]),
        opt_state=opt_state,
        correction_state=correction_state,
    )


def aggregate_updates(
    algorithm: Algorithm, state: ServerState, context: RoundContext, cohort: Cohort, noise_seed: int | None
) -> tuple[Tensor, ServerState]:
    """Return the update of the round [W], and the state with that of the components that computed it.

    With privacy the update is always the noised mean, else a robust or a weighted one.
    """
    result, privacy = cohort.result, algorithm.privacy
    if privacy is not None:
        if privacy.reproducible_noise:
            seed = derive_key(cohort.plan.seed, "noise", cohort.plan.round)
        else:  # 128 bits of the operating system, which are not stored
            seed = secrets.randbits(128) if noise_seed is None else noise_seed
        update_W, privacy_state = private_update(privacy, result, cohort.plan, context, state.privacy_state, seed)
        return update_W, replace(state, privacy_state=privacy_state)
    if cohort.rejected and not cohort.accepted:
        raise DivergenceError(f"no client of round {state.round + 1} returned a finite update")
    if not cohort.accepted:  # random sampling selected no clients
        return result.update_W, state
    if algorithm.aggregator is not None:
        update_W, aggregator_state = robust_mean(algorithm.aggregator, state, cohort)
        return update_W, replace(state, aggregator_state=aggregator_state)
    num_examples_K = np.array([c.num_examples for c in cohort.accepted])
    num_steps_K = np.array([c.num_steps for c in cohort.accepted])
    total = algorithm.client_weighting.normalizer(algorithm, num_examples_K, num_steps_K, state.round)
    return result.update_W / total, state


def robust_mean(aggregator: Aggregator, state: ServerState, cohort: Cohort) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the aggregator's combination of the accepted updates [W], and its new state."""
    result = cohort.result
    if result.updates_KW is None:
        name = type(aggregator).__name__
        raise ValueError(f"aggregator={name} needs each client's update: use engine=reference or engine=multiprocess")
    weights_K = torch.tensor([c.weight for c in cohort.accepted], dtype=torch.float64)
    updates_KW = result.updates_KW[np.flatnonzero(result.accepted_K)]
    return aggregator.aggregate(updates_KW, weights_K, state.weights, state.aggregator_state)
