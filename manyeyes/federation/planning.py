"""Who is asked to take part in a round of a federation, where not everyone is always there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from manyeyes.algorithm import Algorithm, Cohort
from manyeyes.federation.roll import Roll
from manyeyes.population import Ints, Population
from manyeyes.round import plan_round
from manyeyes.work import Plan


@dataclass(frozen=True)
class Among:
    """A cohort drawn from the clients that are there, if they are enough; else from all, and some will be missing."""

    cohort: Cohort
    there: frozenset[int]

    def select(self, population: Population, rng: np.random.Generator) -> Ints:
        present = np.isin(population.users, list(self.there))
        if present.sum() < getattr(self.cohort, "clients", len(population.users)):
            return self.cohort.select(population, rng)
        there = population.where(np.repeat(present, population.sizes))
        return np.flatnonzero(present)[self.cohort.select(there, rng)]


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans rounds over the clients that are connected. With privacy over all: its account is of draws from all."""

    algorithm: Algorithm
    population: Population
    roll: Roll
    seed: int

    def plan(self, round: int) -> Plan:
        cohort = self.algorithm.cohort
        if self.algorithm.privacy is None:
            cohort = Among(cohort, frozenset(self.roll.present()))
        # How much an example counts is the client's to know; rows of the plan are numbers of photos, not photos.
        return plan_round(replace(self.algorithm, cohort=cohort, reweigh=None), self.population, self.seed, round)
