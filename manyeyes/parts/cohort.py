"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from manyeyes.algorithm import Algorithm
from manyeyes.parts.require import count
from manyeyes.population import Ints, Population


@dataclass(frozen=True)
class Uniform:
    """K users, each equally likely, none twice."""

    clients: int

    def __post_init__(self) -> None:
        count("cohort", self.clients, 1)

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        return _too_many(self.clients, population)

    def select(self, population: Population, rng: np.random.Generator) -> Ints:
        return rng.choice(len(population.users), self.clients, replace=False)


@dataclass(frozen=True)
class Poisson:
    """Each user on its own, with the probability that gives K of them on average: what private accounts like best."""

    clients: int

    def __post_init__(self) -> None:
        count("cohort", self.clients, 1)

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        return _too_many(self.clients, population)

    def select(self, population: Population, rng: np.random.Generator) -> Ints:
        users = len(population.users)  # as many as a coin for each would choose, and then any of them
        return rng.choice(users, rng.binomial(users, self.clients / users), replace=False)


@dataclass(frozen=True)
class BySize:
    """K users, one after another, each with probability proportional to n_k among those not yet chosen.

    FedVC (Hsu et al. 2020): the owners of photos picked at random, until there are K different ones.
    """

    clients: int

    def __post_init__(self) -> None:
        count("cohort", self.clients, 1)

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        return _too_many(self.clients, population)

    def select(self, population: Population, rng: np.random.Generator) -> Ints:
        chosen: dict[int, None] = {}
        for _ in range(64):  # each pass brings new owners unless nearly all photos belong to those already chosen
            owners = population.owners(rng.integers(len(population), size=2 * self.clients))
            chosen.update(dict.fromkeys(owners.tolist()))
            if len(chosen) >= self.clients:
                return np.array(list(chosen)[: self.clients])
        rest = np.setdiff1d(np.arange(len(population.users)), list(chosen))
        share = population.sizes[rest] / population.sizes[rest].sum()
        more = rng.choice(rest, self.clients - len(chosen), replace=False, p=share)
        return np.concatenate([np.array(list(chosen)), more])


@dataclass(frozen=True)
class Everyone:
    """Every user in every round."""

    def select(self, population: Population, rng: np.random.Generator) -> Ints:
        return np.arange(len(population.users))


@dataclass(frozen=True)
class Pooled:
    """One client that holds everyone's examples: centralised training."""

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        for part in (algorithm.correct, algorithm.personal, algorithm.compress, algorithm.aggregate):
            if part is not None:
                return f"{type(part).__name__} tells clients apart, and centralised training has none: leave it out"
        return None

    def select(self, population: Population, rng: np.random.Generator) -> Ints:
        assert len(population.users) == 1, "give the pooled population"
        return np.zeros(1, np.int64)


def _too_many(clients: int, population: Population) -> str | None:
    if clients <= len(population.users):
        return None
    return f"a cohort of {clients} clients is asked of {len(population.users)} users: choose a smaller cohort"
