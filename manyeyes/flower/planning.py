"""Which clients take part in a round of a federation, where some are not connected."""

from dataclasses import dataclass, replace

import numpy as np

from manyeyes.core.algorithm import Algorithm, Sampler
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Ints, Population
from manyeyes.flower.registry import ClientRegistry


@dataclass(frozen=True)
class ConnectedSampler:
    """Sample from the connected clients if they suffice for a cohort; else from all, so that some will be missing."""

    sampler: Sampler
    client_ids: frozenset[int]  # connected

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        is_connected = np.isin(population.user_ids, list(self.client_ids))
        if is_connected.sum() < getattr(self.sampler, "cohort_size", len(population.user_ids)):
            return self.sampler.sample(population, rng)
        connected = population.filter(np.repeat(is_connected, population.num_examples))
        return np.flatnonzero(is_connected)[self.sampler.sample(connected, rng)]


@dataclass(frozen=True, eq=False)
class ConnectedPlanSource:
    """Plan rounds over the connected clients; with privacy over all clients, as its accountant assumes."""

    algorithm: Algorithm
    population: Population
    registry: ClientRegistry
    seed: int

    def plan(self, round: int) -> RoundPlan:
        sampler = self.algorithm.sampler
        if self.algorithm.privacy is None:
            sampler = ConnectedSampler(sampler, frozenset(self.registry.connected()))
        # Example weights are drawn by the client; example indices of the plan are counted, never looked up.
        algorithm = replace(self.algorithm, sampler=sampler, example_weighting=None)
        return plan_round(algorithm, self.population, self.seed, round)
