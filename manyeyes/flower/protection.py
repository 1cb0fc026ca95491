"""What bounds the influence of one client on a federated run: the norm of its update, and its number of images.

Clients cannot be trusted, so this is on by default. With privacy it is off: each update is then clipped to a norm that
does not depend on other clients' data, as the guarantee requires, and all clients have the same weight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from manyeyes.components.aggregators import MIN_CLIENTS_FOR_MEDIAN, bound_shares, lower_median, norm_scales
from manyeyes.components.weighting import WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population
from manyeyes.flower.app import FederationConfig
from manyeyes.training.scoring import FixedCohort

MAX_NAMES = 5  # in one line of output
ROBUST_AGGREGATORS = "aggregator=median client_weighting=uniform"


@dataclass(frozen=True)
class Bounds:
    """The factors of the updates that are not added up as they are, 0 to leave one out; and the reasons, by client id."""

    scales: Mapping[int, float]
    clipped: Mapping[int, str]
    left_out: Mapping[int, str]


def bound_norms(norms: Mapping[int, float], config: FederationConfig) -> Bounds:
    """Return how updates are bounded by the median of their norms, which are given by client id."""
    max_ratio, reject_ratio = config.max_norm_ratio or np.inf, config.reject_norm_ratio or np.inf
    scale_K = norm_scales(np.array([*norms.values()]), max_ratio, reject_ratio)
    scales = {id: scale for id, scale in zip(norms, scale_K.tolist(), strict=True) if scale != 1}
    ratios = {
        id: f"its update has {norms[id] / lower_median([*norms.values()]):.3g} times the median norm" for id in scales
    }
    clipped = {id: f"{ratios[id]}, and counts as {max_ratio:g} times" for id, scale in scales.items() if scale}
    limit = f"reject_norm_ratio is {reject_ratio:g}"
    return Bounds(scales, clipped, {id: f"{ratios[id]}, and {limit}" for id in scales if id not in clipped})


def max_counted(counts: Sequence[int], config: FederationConfig) -> int:
    """Return as how many images a client counts at most, among clients that report these numbers."""
    count_K = np.array(counts, np.float64)
    bounded_K = bound_shares(count_K, config.max_weight_ratio) if config.max_weight_ratio else count_K
    return max(int(bounded_K.max()), 1)


def bound_plan(plan: RoundPlan, algorithm: Algorithm, population: Population, config: FederationConfig) -> RoundPlan:
    """Return the plan in which no client counts for more images than `max_weight_ratio` allows.

    The round is planned as if the client had that many images, so that all that follows from their number is bounded:
    weights, the steps that FedNova divides by, and the images that the round reports.
    """
    if algorithm.privacy is not None or isinstance(algorithm.client_weighting, WeightUniformly) or not plan.clients:
        return plan
    counts = [client.num_examples for client in plan.clients]
    limit = max_counted(counts, config)
    if limit >= max(counts):
        return plan
    bounded = limit_examples(population, limit)
    cohort = FixedCohort(tuple(client.user for client in plan.clients))
    return plan_round(replace(algorithm, sampler=cohort), bounded, plan.seed, plan.round)


def limit_examples(population: Population, limit: int) -> Population:
    """Return the population as if no user had more examples than this; the rest of a user's examples is skipped."""
    first_examples = np.repeat(population.offsets[:-1], population.num_examples)
    return population.filter(np.arange(len(population)) - first_examples < limit)


def describe_protection(algorithm: Algorithm, config: FederationConfig) -> str:
    """Return in one line what bounds the influence of a client, for the start of a run."""
    if algorithm.privacy is not None:
        return "protection: privacy clips every update to the same norm, and all clients have the same weight"
    clipped, rejected, weight = config.max_norm_ratio, config.reject_norm_ratio, config.max_weight_ratio
    parts = []
    if clipped:
        parts.append(f"an update is clipped to {clipped:g} times the median norm of its round (max_norm_ratio)")
    if rejected:
        parts.append(f"left out above {rejected:g} times (reject_norm_ratio)")
    if weight:
        parts.append(f"a client's weight is at most {weight:g} equal shares (max_weight_ratio)")
    text = ", ".join(parts) or "none: max_norm_ratio, reject_norm_ratio and max_weight_ratio are 0"
    if (clipped or rejected) and getattr(
        algorithm.sampler, "cohort_size", MIN_CLIENTS_FOR_MEDIAN
    ) < MIN_CLIENTS_FOR_MEDIAN:
        text += f"; a median norm needs cohorts of {MIN_CLIENTS_FOR_MEDIAN} clients"
    if algorithm.aggregator is not None:
        return f"protection: {text}; then aggregator={type(algorithm.aggregator).__name__}"
    return f"protection: {text}; against more malicious clients set {ROBUST_AGGREGATORS}"


def describe_outsized(names: Sequence[str], counts: Sequence[int], config: FederationConfig) -> str:
    """Return which clients report so many images that their weight is bounded; empty if none does."""
    limit = max_counted(counts, config)
    outsized = [f"{name} ({count:,})" for name, count in zip(names, counts, strict=True) if count > limit]
    if not outsized:
        return ""
    return f"protection: counted as {limit:,} training images where all take part: {shorten(outsized)}"


def shorten(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
