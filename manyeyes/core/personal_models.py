"""Personal models: one for each client, which trains on the same batches as the shared model and is never sent."""

from __future__ import annotations

from dataclasses import replace

import torch

from manyeyes.core.algorithm import Algorithm, Engine, PersonalModel
from manyeyes.core.plan import RoundPlan
from manyeyes.core.state import PERSONAL_MODEL_PREFIX, ClientState, ClientStates, Cohort, RoundContext, ServerState


def train_personal_models(
    algorithm: Algorithm,
    personal_model: PersonalModel,
    state: ServerState,
    plan: RoundPlan,
    engine: Engine,
    client_states: ClientStates,
) -> Cohort:
    """Train each client's personal model from its last state or, the first time, from the server's weights."""
    correction = personal_model.correction
    if correction.init(torch.zeros(0)) is not None or correction.needs_full_gradient:
        uses = f"personal_model={type(personal_model).__name__} uses {type(correction).__name__}"
        raise ValueError(f"{uses}, which needs server state or a full gradient: use ProximalTerm")
    context = RoundContext(
        client_optimizer=algorithm.client_optimizer,
        lr=algorithm.client_optimizer.learning_rate(state.round),
        correction=correction,
        correction_state=None,
        personal_mask=engine.personal_mask(personal_model.personal_layers),
        correct_personal_layers=True,
        loss=algorithm.loss,
    )
    prefix = PERSONAL_MODEL_PREFIX
    old_states = {
        client_id: {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        for client_id, state in client_states.items()
    }
    result = engine.train(state.weights, plan, context, old_states)
    new_states = {
        client_id: {prefix + name: tensor for name, tensor in state.items()}
        for client_id, state in result.client_states.items()
    }
    return Cohort(plan, replace(result, client_states=new_states))


def merge_client_states(old: ClientStates, new: dict[int, ClientState], personal: Cohort) -> dict[int, ClientState]:
    """Return the new states of the clients of a round that also trained personal models."""
    own = personal.result.client_states
    return {k: old.get(k, {}) | own.get(k, {}) | new.get(k, {}) for k in sorted(own.keys() | new.keys())}
