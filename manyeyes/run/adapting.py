"""Every client's own model, to be evaluated: kept beside the shared one, or fine-tuned from it and then forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from manyeyes.algorithm import BESIDE, Algorithm, State
from manyeyes.chance import key as chance_key
from manyeyes.engine.evaluation import Judge, Score, with_own
from manyeyes.population import Ints, Population
from manyeyes.round import plan_round
from manyeyes.work import Clients, Engine, Work

TOGETHER = 16  # clients whose whole models are in memory at the same time


@dataclass(frozen=True)
class Chosen:
    """These users."""

    users: tuple[int, ...]

    def select(self, population: Population, rng: np.random.Generator) -> Ints:
        return np.array(self.users)


@dataclass(frozen=True)
class OwnModels(Mapping[int, dict[str, Tensor]]):
    """The clients' own models, read one at a time, as layers that are personal."""

    clients: Clients

    def __getitem__(self, key: int) -> dict[str, Tensor]:
        kept = self.clients[key].get(f"{BESIDE}personal")
        return {} if kept is None else {"personal": kept}  # one whose own model was never finite has none

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def __contains__(self, key: object) -> bool:
        return key in self.clients


def adapted(
    algorithm: Algorithm,
    state: State,
    population: Population,
    engine: Engine,
    evaluator: Judge,
    clients: Clients,
    seed: int,
) -> Score:
    """Every user of the evaluated split with the model that it has made its own; nothing of it is kept.

    Where none has one, as personal layers are evaluated there: some clients' models on all examples.
    """
    if algorithm.adapt is not None:
        return evaluator.own(_fine_tuned(algorithm, state, population, engine, evaluator, clients, seed))
    assert algorithm.beside is not None, "clients make no model of their own"
    if not clients:
        return evaluator.shared(state.weights)
    return evaluator.personal(state.weights, engine.personal(algorithm.beside.personal), OwnModels(clients))


def _fine_tuned(
    algorithm: Algorithm,
    state: State,
    population: Population,
    engine: Engine,
    evaluator: Judge,
    clients: Clients,
    seed: int,
) -> Iterator[tuple[int, Tensor]]:
    """What the users make of their models with their training parts; who has none is evaluated with what there is."""
    assert algorithm.adapt is not None, "clients do not adapt the model"
    task = algorithm.adapt.task(algorithm)
    mask = None if algorithm.personal is None else engine.personal(algorithm.personal)
    if task.personal is None:
        raise ValueError(
            f"{type(algorithm.adapt).__name__}.task returns an algorithm without personal layers: set its `personal` "
            "to what the client trains for itself"
        )
    work = Work(task.local, task.local.rate(state.round), None, None, engine.personal(task.personal))
    place = {key: user for user, key in enumerate(population.users.tolist())}
    users = evaluator.population.users.tolist()
    for first in range(0, len(users), TOGETHER):
        keys = users[first : first + TOGETHER]
        models = {
            key: state.weights if mask is None else with_own(state.weights, mask, clients.get(key)) for key in keys
        }
        able = tuple(place[key] for key in keys if key in place)
        if able:
            plan = plan_round(
                replace(task, cohort=Chosen(able)), population, chance_key(seed, "adapt"), state.round, engine.dice
            )
            begin = {key: {"personal": model} for key, model in models.items()}
            keeps = engine.train(state.weights, plan, work, begin).keeps
            models |= {key: kept["personal"] for key, kept in keeps.items()}
        for key in evaluator.here.my_part(np.array(keys)).tolist():
            yield key, models[key]
