"""The round: Algorithm 1 of Hsu, Qi and Brown (2020), the same for every algorithm, engine and federation."""

from __future__ import annotations

import math
import secrets

import numpy as np
import torch

from manyeyes.core.algorithm import Algorithm, Engine, Privacy, ServerStep
from manyeyes.core.guarantee import check_plan, check_private, private_update
from manyeyes.core.personal_models import merge_client_states, train_personal_models
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population
from manyeyes.core.rng import derive_key
from manyeyes.core.round_metrics import round_metrics
from manyeyes.core.state import (
    Aggregate,
    Cohort,
    DivergenceError,
    MutableClientStates,
    RoundContext,
    RoundMetrics,
    ServerState,
    empty_result,
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
    check_private(algorithm)
    plan = plan or plan_round(algorithm, population, seed, state.round, engine.num_augment_uniforms)
    assert (plan.seed, plan.round) == (seed, state.round), "the plan belongs to another round"
    check_plan(algorithm, plan)
    context = make_context(algorithm, state, engine)
    client_states = {c.client_id: client_state for c in plan.clients if (client_state := clients.get(c.client_id))}

    result = engine.train(state.weights, plan, context, client_states) if plan.clients else empty_result(state.weights)
    cohort = Cohort(plan, result, num_users=len(population.user_ids))
    aggregate = aggregate_updates(algorithm, state, context, cohort, noise_seed)
    new_state = step_server(algorithm, state, cohort, aggregate, engine.num_trainable)
    personal = train_personal_models(algorithm, state, plan, engine, client_states)
    metrics = round_metrics(algorithm, population, context, cohort, new_state, personal, engine.num_trainable)
    check_finite(new_state, metrics)
    clients.update(merge_client_states(client_states, result.client_states, personal))
    return new_state, metrics


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


def aggregate_updates(
    algorithm: Algorithm, state: ServerState, context: RoundContext, cohort: Cohort, noise_seed: int | None
) -> Aggregate:
    """Combine the clients' updates: with privacy always into the noised sum, else into a robust or a weighted mean."""
    result, privacy = cohort.result, algorithm.privacy
    if privacy is not None:
        seed = make_noise_seed(privacy, cohort.plan, noise_seed)
        update, privacy_state = private_update(privacy, result, cohort.plan, context, state.privacy_state, seed)
        return Aggregate(update, privacy_state, state.aggregator_state)
    if cohort.rejected and not cohort.accepted:
        raise DivergenceError(f"no client of round {state.round + 1} returned a finite update")
    if not cohort.accepted:  # random sampling selected no clients
        return Aggregate(result.update_W, {}, state.aggregator_state)
    if algorithm.aggregator is not None:
        return robust_mean(algorithm, state, cohort)
    num_examples_K = np.array([c.num_examples for c in cohort.accepted])
    num_steps_K = np.array([c.num_steps for c in cohort.accepted])
    total = algorithm.client_weighting.normalizer(algorithm, num_examples_K, num_steps_K, state.round)
    return Aggregate(result.update_W / total, {}, state.aggregator_state)


def robust_mean(algorithm: Algorithm, state: ServerState, cohort: Cohort) -> Aggregate:
    """Combine the accepted updates by the algorithm's aggregator."""
    result, aggregator = cohort.result, algorithm.aggregator
    assert aggregator is not None, "robust_mean is called only with an aggregator"
    if result.updates_KW is None:
        raise ValueError(
            f"aggregator={type(aggregator).__name__} compares the clients' updates, and this engine returns only "
            "their sum: use engine=reference or engine=multiprocess"
        )
    weights_K = torch.tensor([c.weight for c in cohort.accepted], dtype=torch.float64)
    updates_KW = result.updates_KW[np.flatnonzero(result.accepted_K)]
    update, new_state = aggregator.aggregate(updates_KW, weights_K, state.weights, state.aggregator_state)
    return Aggregate(update, {}, new_state)


def make_noise_seed(privacy: Privacy, plan: RoundPlan, noise_seed: int | None) -> int:
    """Return the seed of the noise: from the run's seed, or 128 bits of the operating system that are not stored."""
    if privacy.reproducible_noise:
        return derive_key(plan.seed, "noise", plan.round)
    return secrets.randbits(128) if noise_seed is None else noise_seed


def step_server(
    algorithm: Algorithm, state: ServerState, cohort: Cohort, aggregate: Aggregate, num_trainable: int
) -> ServerState:
    """Step the server optimizer and the correction; BatchNorm statistics are only averaged."""
    theta, statistics = state.weights[:num_trainable], state.weights[num_trainable:]
    update = aggregate.update_W[:num_trainable]
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
            num_clients=cohort.num_users,
        )
        correction_state, new_theta = algorithm.correction.server_update(correction_state, step)
    return ServerState(
        round=state.round + 1,
        weights=torch.cat([new_theta, statistics - aggregate.update_W[num_trainable:]]),
        opt_state=opt_state,
        correction_state=correction_state,
        privacy_state=aggregate.privacy_state,
        aggregator_state=aggregate.aggregator_state,
    )


def check_finite(state: ServerState, metrics: RoundMetrics) -> None:
    """Raise DivergenceError if the loss of the round or the new weights are not finite."""
    has_loss = not math.isnan(metrics.update_norm)
    if (has_loss and not math.isfinite(metrics.train_loss)) or not bool(torch.isfinite(state.weights).all()):
        raise DivergenceError(f"the weights after round {state.round} are no longer finite")
