"""Robust aggregators, for rounds with malicious clients; without an aggregator, updates are summed by weight.

An aggregator needs each client's update [K, W]: its memory grows with the cohort, unlike that of the weighted sum.
Coordinates are processed in blocks, so that no other array has that size.
"""

import torch
from torch import Tensor

from manyeyes.components.weighting import WeightUniformly
from manyeyes.core.algorithm import Algorithm, Tensors
from manyeyes.core.population import Population
from manyeyes.core.registry import component, describe, option, register
from manyeyes.core.uplink import l2_norms

MAX_SORTED_ELEMENTS = 2**22  # values that are sorted or compared at once
EPS = 1e-12
Aggregate = tuple[Tensor, Tensors]  # the update [W] and the new state


def no_state(self: object, weights: Tensor) -> Tensors:
    return {}


def replaces_the_sum(self: object, algorithm: Algorithm, population: Population) -> str | None:
    name = describe("aggregator", self)["name"]
    if algorithm.correction is not None and algorithm.correction.uploads:
        correction = type(algorithm.correction).__name__
        return f"correction={correction} sums what clients upload beyond updates, which aggregator={name} cannot guard"
    if algorithm.privacy is not None:
        return f"privacy adds noise to a sum, and aggregator={name} is not one: set aggregator=none or privacy=none"
    return None


def counts_uniformly(self: object, algorithm: Algorithm, population: Population) -> str | None:
    if algorithm.client_weighting != WeightUniformly():
        return (
            f"aggregator={describe('aggregator', self)['name']} counts every client the same, or a false number of "
            "examples would count: set client_weighting=uniform"
        )
    return replaces_the_sum(self, algorithm, population)


@component("aggregator", "median")
class Median:
    """The median of each coordinate (Yin et al. 2018): robust while fewer than half of the clients are malicious."""

    init, incompatibility = no_state, counts_uniformly

    def aggregate(self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: Tensors) -> Aggregate:
        return _trimmed_mean(updates_KW, (len(updates_KW) - 1) // 2), state


@component("aggregator", "trimmed_mean")
class TrimmedMean:
    """The mean of each coordinate without its lowest and highest values (Yin et al. 2018)."""

    trim_fraction: float = option(0.1, "fraction of the clients cut off at each end", minimum=0, below=0.5)

    init, incompatibility = no_state, counts_uniformly

    def aggregate(self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: Tensors) -> Aggregate:
        return _trimmed_mean(updates_KW, int(self.trim_fraction * len(updates_KW))), state


@register("aggregator", "multi_krum", num_selected=5)
@component("aggregator", "krum")
class Krum:
    """The update closest to its neighbors, or the mean of the `num_selected` closest (Blanchard et al. 2017).

    The score of an update is the sum of its squared distances to the K - f - 2 nearest others, where f clients may be
    malicious; the lowest scores win.
    """

    num_malicious: int = option(1, "clients of a round that may be malicious (f)", minimum=0)
    num_selected: int = option(1, "updates that are averaged; above 1: multi-Krum", minimum=1)

    init = no_state

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        cohort_size = getattr(algorithm.sampler, "cohort_size", len(population.user_ids))
        min_clients = max(2 * self.num_malicious + 3, self.num_selected)  # Krum's guarantee holds from 2 f + 3 on
        if cohort_size < min_clients:
            return (
                f"aggregator=krum with num_malicious={self.num_malicious} and num_selected={self.num_selected} needs "
                f"{min_clients} clients per round, and the cohort has {cohort_size}: choose a larger cohort"
            )
        return counts_uniformly(self, algorithm, population)

    def aggregate(self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: Tensors) -> Aggregate:
        best = self.scores(updates_KW).argsort(stable=True)[: self.num_selected]
        return updates_KW[best].mean(0), state

    def scores(self, updates_KW: Tensor) -> Tensor:
        """Return the score of each update [K]; where clients were rejected, over the neighbors that remain."""
        num_clients = len(updates_KW)
        squared_KK = updates_KW.new_zeros(num_clients, num_clients, dtype=torch.float64)
        for block in blocks(updates_KW):
            squared_KK += torch.cdist(block, block, compute_mode="donot_use_mm_for_euclid_dist").double() ** 2
        num_neighbors = max(num_clients - self.num_malicious - 2, 1)
        return squared_KK.sort(1).values[:, 1 : 1 + num_neighbors].sum(1)  # the nearest is the update itself


@component("aggregator", "centered_clipping")
class CenteredClipping:
    """Updates clipped around the last round's aggregate v: v <- v + mean_k (u_k - v) min(1, radius / ||u_k - v||).

    Karimireddy et al. 2021, "Learning from history for Byzantine robust optimization", Algorithm 2.
    """

    radius: float = option(10.0, "norm at which a difference from the center is clipped", above=0)
    iterations: int = option(1, "clipping steps per round", minimum=1)

    incompatibility = counts_uniformly

    def init(self, weights: Tensor) -> Tensors:
        return {"center": torch.zeros_like(weights)}

    def aggregate(self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: Tensors) -> Aggregate:
        center = state["center"]
        for _ in range(self.iterations):
            differences_KW = updates_KW - center
            scale_K = (self.radius / l2_norms(differences_KW).clamp_min(EPS)).clamp_max(1)
            center = center + (differences_KW * scale_K[:, None]).mean(0)
        return center, {"center": center}


@component("aggregator", "geometric_median")
class GeometricMedian:
    """The point with the smallest weighted sum of distances to the updates, by smoothed Weiszfeld iterations.

    RFA, Pillutla et al. 2022, "Robust aggregation for federated learning", Algorithm 2. Clients keep their weights.
    """

    iterations: int = option(8, "Weiszfeld iterations per round", minimum=1)
    smoothing: float = option(1e-6, "smallest distance that divides a weight", above=0)

    init, incompatibility = no_state, replaces_the_sum

    def aggregate(self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: Tensors) -> Aggregate:
        alpha_K = (weights_K / weights_K.sum()).to(updates_KW)
        median = alpha_K @ updates_KW
        for _ in range(self.iterations):
            beta_K = alpha_K / l2_norms(updates_KW - median).clamp_min(self.smoothing)
            median = beta_K @ updates_KW / beta_K.sum()
        return median, state


def _trimmed_mean(updates_KW: Tensor, num_cut: int) -> Tensor:
    """Return the mean of each coordinate without its `num_cut` lowest and highest values."""
    middle = slice(num_cut, len(updates_KW) - num_cut)
    return torch.cat([block.sort(0).values[middle].mean(0) for block in blocks(updates_KW)])


def blocks(updates_KW: Tensor) -> tuple[Tensor, ...]:
    """Return the updates in blocks of coordinates."""
    return updates_KW.split(max(1, MAX_SORTED_ELEMENTS // len(updates_KW)), 1)
