"""The round: Algorithm 1 of Hsu, Qi and Brown (2020), the same for every algorithm, engine and federation."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.algorithm import Algorithm, Engine, Privacy, ServerStep
from manyeyes.core.guarantee import check_plan, check_private, private_update
from manyeyes.core.plan import ClientPlan, RoundPlan, plan_round
from manyeyes.core.population import Population
from manyeyes.core.rng import derive_key
from manyeyes.core.state import (
    PERSONAL_MODEL_PREFIX,
    ClientState,
    ClientStates,
    CohortResult,
    DivergenceError,
    MutableClientStates,
    RoundContext,
    RoundMetrics,
    ServerState,
    communication_cost,
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
        The round's plan, if it has been drawn already.
    noise_seed
        What privacy noise follows from, where several processes must add the same; by default the operating system.
    """
    check_private(algorithm)
    plan = plan or plan_round(algorithm, population, seed, state.round, engine.num_augment_uniforms)
    assert (plan.seed, plan.round) == (seed, state.round), "the plan belongs to another round"
    check_plan(algorithm, plan)
    context = make_context(algorithm, state, engine)
    client_states = {c.client_id: kept for c in plan.clients if (kept := clients.get(c.client_id))}

    result = engine.train(state.weights, plan, context, client_states) if plan.clients else empty_result(state.weights)
    cohort = Cohort.of_result(plan, result, num_clients=len(population.user_ids))
    aggregated = aggregate(algorithm, state, context, cohort, noise_seed)
    new_state = step_server(algorithm, state, cohort, aggregated, engine.num_trainable)
    metrics = round_metrics(algorithm, population, context, cohort, new_state, engine)
    check_finite(new_state, metrics)

    personal = train_personal_models(algorithm, state, plan, engine, client_states)
    clients.update(merge_client_states(client_states, result, personal))
    return new_state, add_personal_rejections(metrics, algorithm, population, cohort, personal)


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


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of a round with the result of their training."""

    plan: RoundPlan
    result: CohortResult
    accepted: list[ClientPlan]
    rejected: list[ClientPlan]
    num_clients: int  # users of the population

    @staticmethod
    def of_result(plan: RoundPlan, result: CohortResult, num_clients: int) -> Cohort:
        accepted: list[ClientPlan] = []
        rejected: list[ClientPlan] = []
        for client, is_accepted in zip(plan.clients, result.accepted_K, strict=True):
            (accepted if is_accepted else rejected).append(client)
        return Cohort(plan, result, accepted, rejected, num_clients)


@dataclass(frozen=True, eq=False)
class Aggregated:
    """The update of the round, and the new states of what made it."""

    update: Tensor  # [W]
    privacy_state: dict[str, Tensor]
    aggregator_state: dict[str, Tensor]


def aggregate(
    algorithm: Algorithm, state: ServerState, context: RoundContext, cohort: Cohort, noise_seed: int | None
) -> Aggregated:
    """Make one update of the clients': with privacy always the noised sum, else a robust or a weighted mean."""
    result, privacy, aggregator = cohort.result, algorithm.privacy, algorithm.aggregator
    if privacy is not None:
        seed = make_noise_seed(privacy, cohort.plan, noise_seed)
        update, privacy_state = private_update(privacy, result, cohort.plan, context, state.privacy_state, seed)
        return Aggregated(update, privacy_state, state.aggregator_state)
    if cohort.rejected and not cohort.accepted:
        raise DivergenceError(f"no client of round {state.round + 1} returned a finite update")
    if not cohort.accepted:  # random sampling selected no clients
        return Aggregated(result.update_W, {}, state.aggregator_state)
    if aggregator is not None:
        if result.updates_KW is None:
            raise ValueError(
                f"aggregator={type(aggregator).__name__} compares the clients' updates, and this engine returns only "
                "their sum: use engine=reference or engine=multiprocess"
            )
        weights_K = torch.tensor([c.weight for c in cohort.accepted], dtype=torch.float64)
        updates_KW = result.updates_KW[np.flatnonzero(result.accepted_K)]
        update, aggregator_state = aggregator.aggregate(updates_KW, weights_K, state.weights, state.aggregator_state)
        return Aggregated(update, {}, aggregator_state)
    num_examples_K = np.array([c.num_examples for c in cohort.accepted])
    num_steps_K = np.array([c.num_steps for c in cohort.accepted])
    total = algorithm.client_weighting.normalizer(algorithm, num_examples_K, num_steps_K, state.round)
    return Aggregated(result.update_W / total, {}, state.aggregator_state)


def make_noise_seed(privacy: Privacy, plan: RoundPlan, noise_seed: int | None) -> int:
    """Return what the noise follows from: the run's seed, or 128 bits of the operating system that are not kept."""
    if privacy.reproducible_noise:
        return derive_key(plan.seed, "noise", plan.round)
    return secrets.randbits(128) if noise_seed is None else noise_seed


def step_server(
    algorithm: Algorithm, state: ServerState, cohort: Cohort, aggregated: Aggregated, num_trainable: int
) -> ServerState:
    """Step the server optimizer, and let the correction take part; BatchNorm statistics are only averaged."""
    theta, statistics = state.weights[:num_trainable], state.weights[num_trainable:]
    update = aggregated.update[:num_trainable]
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
            num_clients=cohort.num_clients,
        )
        correction_state, new_theta = algorithm.correction.server_update(correction_state, step)
    return ServerState(
        round=state.round + 1,
        weights=torch.cat([new_theta, statistics - aggregated.update[num_trainable:]]),
        opt_state=opt_state,
        correction_state=correction_state,
        privacy_state=aggregated.privacy_state,
        aggregator_state=aggregated.aggregator_state,
    )


def round_metrics(
    algorithm: Algorithm,
    population: Population,
    context: RoundContext,
    cohort: Cohort,
    new_state: ServerState,
    engine: Engine,
) -> RoundMetrics:
    """Return what is reported of the round; with privacy, nothing that singles out a client."""
    privacy, result, clients = algorithm.privacy, cohort.result, cohort.plan.clients
    accepted_K = result.accepted_K
    min_clients = 1 if privacy is None else 2  # the mean of one client is that client's own
    has_means = len(cohort.accepted) >= min_clients
    num_steps_K = np.array([c.num_steps for c in clients] or [0])
    num_images_K = np.array([c.num_images for c in clients])
    mask = context.personal_mask
    num_shared = len(new_state.weights) if mask is None else int((~mask).sum())
    bytes_up, bytes_down = communication_cost(algorithm, num_shared, engine.num_trainable)
    mean_loss = math.nan
    if has_means:
        images_K = num_images_K[accepted_K]
        mean_loss = float(result.loss_K[accepted_K] @ images_K / images_K.sum())
    names = {c.client_id: population.user_name(c.user) for c in cohort.rejected}
    return RoundMetrics(
        round=new_state.round,
        train_loss=mean_loss,
        update_norm=float(result.norm_K[accepted_K].mean()) if has_means else math.nan,
        num_clients=len(clients),
        num_images=int(num_images_K.sum()),
        max_client_batches=int(num_steps_K.max()) if privacy is None else math.ceil(num_steps_K.mean()),
        rejected_clients=tuple(names.values()) if privacy is None else ("(private)",) * len(names),
        rejection_reasons={}
        if privacy is not None
        else {names[k]: reason for k, reason in result.rejection_reasons.items() if k in names},
        epsilon=None if privacy is None else privacy.epsilon_spent(new_state.round, new_state.privacy_state),
        clipping_norm=None if privacy is None else context.clipping_norm,
        bytes_up=bytes_up * len(clients),
        bytes_down=bytes_down * len(clients),
    )


def check_finite(state: ServerState, metrics: RoundMetrics) -> None:
    """Raise DivergenceError if the loss of the round or the new weights are not finite."""
    has_loss = not math.isnan(metrics.update_norm)
    if (has_loss and not math.isfinite(metrics.train_loss)) or not bool(torch.isfinite(state.weights).all()):
        raise DivergenceError(f"the weights after round {state.round} are no longer finite")


@dataclass(frozen=True, eq=False)
class PersonalTraining:
    """The result of training the clients' personal models."""

    client_states: dict[int, ClientState]
    failures: dict[int, str]  # client ids whose model is not kept; the reason is empty if it was not finite


def train_personal_models(
    algorithm: Algorithm, state: ServerState, plan: RoundPlan, engine: Engine, client_states: ClientStates
) -> PersonalTraining | None:
    """Train each client's personal model from where it was or, the first time, from the server's weights."""
    if algorithm.personal_model is None or not plan.clients:
        return None
    correction = algorithm.personal_model.correction
    if correction.init(torch.zeros(0)) is not None or correction.needs_full_gradient:
        raise ValueError(
            f"personal_model={type(algorithm.personal_model).__name__} uses {type(correction).__name__}, which needs "
            "server state or a full gradient, and a personal model has neither: use ProximalTerm"
        )
    context = RoundContext(
        client_optimizer=algorithm.client_optimizer,
        lr=algorithm.client_optimizer.learning_rate(state.round),
        correction=correction,
        correction_state=None,
        personal_mask=engine.personal_mask(algorithm.personal_model.personal_layers),
        correct_personal_layers=True,
        loss=algorithm.loss,
    )
    own_states = {
        client_id: {
            name.removeprefix(PERSONAL_MODEL_PREFIX): tensor
            for name, tensor in client_state.items()
            if name.startswith(PERSONAL_MODEL_PREFIX)
        }
        for client_id, client_state in client_states.items()
    }
    result = engine.train(state.weights, plan, context, own_states)
    new_states = {
        client_id: {PERSONAL_MODEL_PREFIX + name: tensor for name, tensor in client_state.items()}
        for client_id, client_state in result.client_states.items()
    }
    rejected = Cohort.of_result(plan, result, num_clients=0).rejected
    return PersonalTraining(new_states, {c.client_id: result.rejection_reasons.get(c.client_id, "") for c in rejected})


def merge_client_states(
    old: ClientStates, result: CohortResult, personal: PersonalTraining | None
) -> dict[int, ClientState]:
    """Return the new states of the clients of a round."""
    if personal is None:
        return result.client_states
    new, own = result.client_states, personal.client_states
    return {k: old.get(k, {}) | own.get(k, {}) | new.get(k, {}) for k in sorted(own.keys() | new.keys())}


def add_personal_rejections(
    metrics: RoundMetrics,
    algorithm: Algorithm,
    population: Population,
    cohort: Cohort,
    personal: PersonalTraining | None,
) -> RoundMetrics:
    """Add the clients whose personal model was rejected; one whose update was rejected is named already."""
    if personal is None:
        return metrics
    failed = [client for client in cohort.accepted if client.client_id in personal.failures]
    if algorithm.privacy is not None:
        return replace(metrics, rejected_clients=metrics.rejected_clients + ("(private)",) * len(failed))
    reasons = {}
    for client in failed:
        name = population.user_name(client.user)
        reasons[name] = (
            personal.failures[client.client_id] or f"the personal model of user {name} was not finite and is discarded"
        )
    return replace(
        metrics,
        rejected_clients=metrics.rejected_clients + tuple(reasons),
        rejection_reasons={**metrics.rejection_reasons, **reasons},
    )
