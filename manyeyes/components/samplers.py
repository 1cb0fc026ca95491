"""Which clients take part in a round."""

from typing import Any

import numpy as np

from manyeyes.components.corrections import ProximalTerm
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Ints, Population
from manyeyes.core.registry import component, describe, option

MAX_PASSES = 64  # of random images before the rest of a size-weighted cohort is drawn exactly
COHORT_SIZE_HELP = "clients per round"
REPLACEMENT_HELP = "whether a client may be drawn several times in a round"
SLOTS_OF_SEVERAL_CLIENTS = ("correction", "personal_layers", "compressor", "aggregator", "personal_model", "adaptation")


def exceeds_population(self: Any, algorithm: Algorithm, population: Population) -> str | None:
    return too_large_cohort(self, len(population.user_ids), "training users")


def too_large_cohort(sampler: Any, num_users: int, users: str = "users of the data") -> str | None:
    """Return why a sampler cannot draw its cohort from this number of users, or None: one without a cohort size always can."""
    cohort_size = getattr(sampler, "cohort_size", 0)
    if getattr(sampler, "replacement", False) or not isinstance(cohort_size, int) or cohort_size <= num_users:
        return None
    return f"cohort_size={cohort_size} is more than the {num_users} {users}: choose a smaller cohort_size"


def conflict_with_repeats(algorithm: Algorithm) -> str | None:
    """Return what needs each client at most once in a round, because it keeps a state of it or bounds its influence."""
    correction, compressor = algorithm.correction, algorithm.compressor
    has_conflict = {
        "correction": correction is not None and type(correction) is not ProximalTerm,
        "personal_layers": algorithm.personal_layers is not None,
        "personal_model": algorithm.personal_model is not None,
        "client_optimizer.persist_state": algorithm.client_optimizer.persist_state,
        "compressor": compressor is not None and compressor.error_feedback,
        "aggregator": algorithm.aggregator is not None,  # which bounds what one client contributes
        "privacy": algorithm.privacy is not None,
    }
    for slot in filter(has_conflict.get, has_conflict):
        reason = f"may draw a client twice in a round, and {slot} needs each client at most once"
        return f"sampler.replacement=true {reason}: set sampler.replacement=false"
    return None


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
    """A fixed number of users, drawn in proportion to their number of examples: FedVC (Hsu et al. 2020).

    Without replacement they are the users of images picked at random, until there are `cohort_size` different ones.
    With replacement they are the users of `cohort_size` images: a user's share of the draws is exactly its share of the
    images, and it may be drawn several times in a round, each time for other examples. The paper does not say which.
    """

    cohort_size: int = option(10, COHORT_SIZE_HELP, minimum=1)
    replacement: bool = option(False, REPLACEMENT_HELP)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        return conflict_with_repeats(algorithm) if self.replacement else exceeds_population(self, algorithm, population)

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        if self.replacement:
            return population.owners(rng.integers(len(population), size=self.cohort_size))
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
