"""What bounds the influence of one client on a federated run: norm and direction of its update, and its images.

Clients cannot be trusted, so this is on by default. With privacy it is off: each update is then clipped to a norm that
does not depend on other clients' data, as the guarantee requires, and all clients have the same weight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from manyeyes.components.bounded_mean import (
    MIN_CLIENTS_FOR_MEDIAN,
    TINY_NORM,
    bound_shares,
    is_opposed,
    lower_median,
    norm_scales,
)
from manyeyes.components.weighting import WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population
from manyeyes.core.uplink import l2_norms
from manyeyes.flower.app import FederationConfig
from manyeyes.training.scoring import FixedCohort

MAX_NAMES = 5  # in one line of output
MAX_LOSS_RATIO = 10.0
ROBUST_AGGREGATORS = "aggregator=median client_weighting=uniform"


@dataclass(frozen=True)
class Bounds:
    """The factors of the updates that are not added up as they are, 0 to leave one out; and the reasons, by client id."""

    scales: Mapping[int, float]
    clipped: Mapping[int, str]
    left_out: Mapping[int, str]


def bound_updates(updates_KP: Tensor, ids: Sequence[int], config: FederationConfig) -> Bounds:
    """Return how the updates of these clients are bounded by the others: by their norms and directions."""
    bounds = bound_norms(updates_KP, ids, config, "update", config.reject_norm_ratio or np.inf)
    if not config.reject_opposed:
        return bounds
    opposed = {ids[k]: "its update points against most others" for k in np.flatnonzero(is_opposed(updates_KP)).tolist()}
    return Bounds(
        scales={**bounds.scales, **dict.fromkeys(opposed, 0.0)},
        clipped={id: reason for id, reason in bounds.clipped.items() if id not in opposed},
        left_out=join_reasons(bounds.left_out, opposed),
    )


def bound_norms(
    vectors_KP: Tensor, ids: Sequence[int], config: FederationConfig, name: str, reject_ratio: float = np.inf
) -> Bounds:
    """Return how what clients sent under a name is bounded by the median of its norms."""
    norm_K = l2_norms(vectors_KP).double().cpu().numpy()
    scale_K = norm_scales(norm_K, config.max_norm_ratio or np.inf, reject_ratio)
    scales, clipped, left_out = dict[int, float](), dict[int, str](), dict[int, str]()
    for k in np.flatnonzero(scale_K != 1).tolist():
        text = f"its {name} has {norm_K[k] / max(lower_median(norm_K), TINY_NORM):.3g} times the median norm"
        scales[ids[k]] = float(scale_K[k])
        if scale_K[k]:
            clipped[ids[k]] = f"{text}: it counts as {config.max_norm_ratio:g} times"
        else:
            left_out[ids[k]] = f"{text}, and reject_norm_ratio is {reject_ratio:g}"
    return Bounds(scales, clipped, left_out)


def max_counted_loss(losses: Sequence[float]) -> float:
    """Return as how much the loss of a client counts at most in what is reported: ten times the median, or 10."""
    if len(losses) < MIN_CLIENTS_FOR_MEDIAN:
        return np.inf
    return MAX_LOSS_RATIO * max(lower_median(losses), 1.0)


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
    clipped, rejected = config.max_norm_ratio, config.reject_norm_ratio
    opposed, weight = config.reject_opposed, config.max_weight_ratio
    parts = [
        (clipped, f"an update is clipped to {clipped:g} times the median norm of its round (max_norm_ratio)"),
        (rejected, f"left out above {rejected:g} times (reject_norm_ratio)"),
        (opposed, "left out if it points against most others (reject_opposed)"),
        (weight, f"a client's weight is at most {weight:g} equal shares (max_weight_ratio)"),
    ]
    settings = "max_norm_ratio, reject_norm_ratio and max_weight_ratio are 0, and reject_opposed is false"
    text = ", ".join(part for value, part in parts if value) or f"none: {settings}"
    cohort_size = getattr(algorithm.sampler, "cohort_size", MIN_CLIENTS_FOR_MEDIAN)
    if (clipped or rejected or opposed) and cohort_size < MIN_CLIENTS_FOR_MEDIAN:
        text += f"; comparing updates needs cohorts of {MIN_CLIENTS_FOR_MEDIAN} clients"
    if algorithm.aggregator is not None:
        return f"protection: {text}; then aggregator={type(algorithm.aggregator).__name__}"
    return f"protection: {text}; against more malicious clients set {ROBUST_AGGREGATORS}"


def describe_outsized(names: Sequence[str], counts: Sequence[int], config: FederationConfig) -> str:
    """Return the clients whose number of images is bounded; empty if none does."""
    limit = max_counted(counts, config)
    outsized = [f"{name} ({count:,})" for name, count in zip(names, counts, strict=True) if count > limit]
    if not outsized:
        return ""
    return f"protection: counted as {limit:,} training images where all take part: {shorten(outsized)}"


def shorten(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def join_reasons(*parts: Mapping[int, str]) -> dict[int, str]:
    """Return all reasons by client id, those of one client as one text."""
    ids = dict.fromkeys(id for reasons in parts for id in reasons)
    return {id: "; ".join(reasons[id] for reasons in parts if id in reasons) for id in ids}
