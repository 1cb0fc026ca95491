"""Who is asked to take part in a round of a federation, where not everyone is always there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from manyeyes.core.algorithm import Algorithm, Sampler
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Ints, Population
from manyeyes.flower.registry import ClientRegistry


@dataclass(frozen=True)
class ConnectedSampler:
    """A cohort drawn from the clients that are there, if they are enough; else from all, and some will be missing."""

    cohort: Sampler
    there: frozenset[int]

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        present = np.isin(population.user_ids, list(self.there))
        if present.sum() < getattr(self.cohort, "cohort_size", len(population.user_ids)):
            return self.cohort.sample(population, rng)
        there = population.filter(np.repeat(present, population.num_examples))
        return np.flatnonzero(present)[self.cohort.sample(there, rng)]


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans rounds over the clients that are connected. With privacy over all: its account is of draws from all."""

    algorithm: Algorithm
    population: Population
    roll: ClientRegistry
    seed: int

    def plan(self, round: int) -> RoundPlan:
        cohort = self.algorithm.sampler
        if self.algorithm.privacy is None:
            cohort = ConnectedSampler(cohort, frozenset(self.roll.connected()))
        # How much an example counts is the client's to know; rows of the plan are numbers of photos, not photos.
        return plan_round(
            replace(self.algorithm, sampler=cohort, example_weighting=None), self.population, self.seed, round
        )
