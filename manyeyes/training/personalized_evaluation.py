"""Every client's own model, to be evaluated: kept beside the shared one, or fine-tuned from it and then forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.engine import Engine, RoundContext
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Ints, Population
from manyeyes.core.rng import derive_key as chance_key
from manyeyes.core.state import PERSONAL_MODEL_PREFIX, PERSONAL_WEIGHTS, ClientStates, ServerState
from manyeyes.engines.evaluation import Evaluator, Score, with_personal_weights

TOGETHER = 16  # clients whose whole models are in memory at the same time


@dataclass(frozen=True)
class FixedCohort:
    """These users."""

    users: tuple[int, ...]

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return np.array(self.users)


@dataclass(frozen=True)
class PersonalModels(Mapping[int, dict[str, Tensor]]):
    """The clients' own models, read one at a time, as layers that are personal."""

    clients: ClientStates

    def __getitem__(self, key: int) -> dict[str, Tensor]:
        kept = self.clients[key].get(PERSONAL_MODEL_PREFIX + PERSONAL_WEIGHTS)
        return {} if kept is None else {PERSONAL_WEIGHTS: kept}  # one whose own model was never finite has none

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def __contains__(self, key: object) -> bool:
        return key in self.clients


def evaluate_personalized(
    algorithm: Algorithm,
    state: ServerState,
    population: Population,
    engine: Engine,
    evaluator: Evaluator,
    clients: ClientStates,
    seed: int,
) -> Score:
    """Every user of the evaluated split with the model that it has made its own; nothing of it is kept.

    Where none has one, as personal layers are evaluated there: some clients' models on all examples.
    """
    if algorithm.adaptation is not None:
        return evaluator.evaluate_personal_models(
            _fine_tuned(algorithm, state, population, engine, evaluator, clients, seed)
        )
    assert algorithm.personal_model is not None, "clients make no model of their own"
    if not clients:
        return evaluator.evaluate_global(state.weights)
    return evaluator.evaluate_personal_layers(
        state.weights, engine.personal_mask(algorithm.personal_model.personal_layers), PersonalModels(clients)
    )


def _fine_tuned(
    algorithm: Algorithm,
    state: ServerState,
    population: Population,
    engine: Engine,
    evaluator: Evaluator,
    clients: ClientStates,
    seed: int,
) -> Iterator[tuple[int, Tensor]]:
    """What the users make of their models with their training parts; who has none is evaluated with what there is."""
    assert algorithm.adaptation is not None, "clients do not adapt the model"
    task = algorithm.adaptation.local_algorithm(algorithm)
    mask = None if algorithm.personal_layers is None else engine.personal_mask(algorithm.personal_layers)
    if task.personal_layers is None:
        raise ValueError(
            f"{type(algorithm.adaptation).__name__}.task returns an algorithm without personal layers: set its `personal` "
            "to what the client trains for itself"
        )
    work = RoundContext(
        task.client_optimizer,
        task.client_optimizer.learning_rate(state.round),
        None,
        None,
        engine.personal_mask(task.personal_layers),
    )
    place = {key: user for user, key in enumerate(population.user_ids.tolist())}
    users = evaluator.population.user_ids.tolist()
    for first in range(0, len(users), TOGETHER):
        keys = users[first : first + TOGETHER]
        models = {
            key: state.weights if mask is None else with_personal_weights(state.weights, mask, clients.get(key))
            for key in keys
        }
        able = tuple(place[key] for key in keys if key in place)
        if able:
            plan = plan_round(
                replace(task, sampler=FixedCohort(able)),
                population,
                chance_key(seed, "adapt"),
                state.round,
                engine.num_augment_uniforms,
            )
            begin = {key: {PERSONAL_WEIGHTS: model} for key, model in models.items()}
            keeps = engine.train(state.weights, plan, work, begin).client_states
            models |= {key: kept[PERSONAL_WEIGHTS] for key, kept in keeps.items()}
        for key in evaluator.dist.shard(np.array(keys)).tolist():
            yield key, models[key]
