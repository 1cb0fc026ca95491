"""Which clients take part in a round."""

from typing import Any

import numpy as np

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Ints, Population
from manyeyes.core.registry import component, describe, option

MAX_PASSES = 64  # of random images before the rest of a size-weighted cohort is drawn exactly
COHORT_SIZE_HELP = "clients per round"
SLOTS_OF_SEVERAL_CLIENTS = ("correction", "personal_layers", "compressor", "aggregator", "personal_model", "adaptation")


def exceeds_population(self: Any, algorithm: Algorithm, population: Population) -> str | None:
    if self.cohort_size <= (num_users := len(population.user_ids)):
        return None
    return f"cohort_size={self.cohort_size} is more than the {num_users} users of the data: choose a smaller cohort"


@component("sampler", "uniform")
class UniformSampler:
    """A fixed number of users, each equally likely, without replacement."""

    cohort_size: int = option(10, COHORT_SIZE_HELP, minimum=1)

    incompatibility = exceeds_population

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return rng.choice(len(population.user_ids), self.cohort_size, replace=False)


@component("sampler", "poisson")
class PoissonSampler:
    """Each user independently, with the probability that gives `cohort_size` clients on average."""

    cohort_size: int = option(10, "clients per round, on average", minimum=1)

    incompatibility = exceeds_population

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        num_users = len(population.user_ids)  # the number that independent draws would select, then any of that size
        return rng.choice(num_users, rng.binomial(num_users, self.cohort_size / num_users), replace=False)


@component("sampler", "size_weighted")
class SizeWeightedSampler:
    """A fixed number of users, drawn in proportion to their number of examples, without replacement.

    FedVC (Hsu et al. 2020): the users of images picked at random, until there are `cohort_size` different ones.
    """

    cohort_size: int = option(10, COHORT_SIZE_HELP, minimum=1)

    incompatibility = exceeds_population

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        selected: dict[int, None] = {}
        for _ in range(MAX_PASSES):  # a pass finds new users unless nearly all images belong to selected ones
            users = population.owners(rng.integers(len(population), size=2 * self.cohort_size))
            selected.update(dict.fromkeys(users.tolist()))
            if len(selected) >= self.cohort_size:
                return np.array(list(selected)[: self.cohort_size])
        others = np.setdiff1d(np.arange(len(population.user_ids)), list(selected))
        probabilities = population.num_examples[others] / population.num_examples[others].sum()
        rest = rng.choice(others, self.cohort_size - len(selected), replace=False, p=probabilities)
        return np.concatenate([np.array(list(selected)), rest])


@component("sampler", "all")
class AllClients:
    """Every user in every round."""

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return np.arange(len(population.user_ids))


@component("sampler", "centralized")
class Centralized:
    """One client that holds all examples: centralized training."""

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        for slot in SLOTS_OF_SEVERAL_CLIENTS:
            if (other := getattr(algorithm, slot)) is not None:
                return (
                    f"{slot}={describe(slot, other)['name']} needs several clients, and sampler=centralized has one: "
                    f"choose another sampler or set {slot}=none"
                )
        return None

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        if len(population.user_ids) != 1:
            raise ValueError("sampler=centralized needs the pooled population: pass population.pooled()")
        return np.zeros(1, np.int64)
