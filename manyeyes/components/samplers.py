"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.components.validation import require_int
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Ints, Population
from manyeyes.core.registry import register


@register("sampler", "uniform")
@dataclass(frozen=True)
class UniformSampler:
    """K users, each equally likely, none twice."""

    cohort_size: int

    def __post_init__(self) -> None:
        require_int("cohort", self.cohort_size, 1)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return _too_many(self.cohort_size, population)

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return rng.choice(len(population.user_ids), self.cohort_size, replace=False)


@register("sampler", "poisson")
@dataclass(frozen=True)
class PoissonSampler:
    """Each user on its own, with the probability that gives K of them on average: what private accounts like best."""

    cohort_size: int

    def __post_init__(self) -> None:
        require_int("cohort", self.cohort_size, 1)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return _too_many(self.cohort_size, population)

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        users = len(population.user_ids)  # as many as a coin for each would choose, and then any of them
        return rng.choice(users, rng.binomial(users, self.cohort_size / users), replace=False)


@register("sampler", "size_weighted")
@dataclass(frozen=True)
class SizeWeightedSampler:
    """K users, one after another, each with probability proportional to n_k among those not yet chosen.

    FedVC (Hsu et al. 2020): the owners of photos picked at random, until there are K different ones.
    """

    cohort_size: int

    def __post_init__(self) -> None:
        require_int("cohort", self.cohort_size, 1)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return _too_many(self.cohort_size, population)

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        chosen: dict[int, None] = {}
        for _ in range(64):  # each pass brings new owners unless nearly all photos belong to those already chosen
            owners = population.owners(rng.integers(len(population), size=2 * self.cohort_size))
            chosen.update(dict.fromkeys(owners.tolist()))
            if len(chosen) >= self.cohort_size:
                return np.array(list(chosen)[: self.cohort_size])
        rest = np.setdiff1d(np.arange(len(population.user_ids)), list(chosen))
        share = population.num_examples[rest] / population.num_examples[rest].sum()
        more = rng.choice(rest, self.cohort_size - len(chosen), replace=False, p=share)
        return np.concatenate([np.array(list(chosen)), more])


@register("sampler", "all")
@dataclass(frozen=True)
class AllClients:
    """Every user in every round."""

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return np.arange(len(population.user_ids))


@register("sampler", "centralized")
@dataclass(frozen=True)
class Centralized:
    """One client that holds everyone's examples: centralised training."""

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        for part in (algorithm.correction, algorithm.personal_layers, algorithm.compressor, algorithm.aggregator):
            if part is not None:
                return f"{type(part).__name__} tells clients apart, and centralised training has none: leave it out"
        return None

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        assert len(population.user_ids) == 1, "give the pooled population"
        return np.zeros(1, np.int64)


def _too_many(clients: int, population: Population) -> str | None:
    if clients <= len(population.user_ids):
        return None
    return f"a cohort of {clients} clients is asked of {len(population.user_ids)} users: choose a smaller cohort"
