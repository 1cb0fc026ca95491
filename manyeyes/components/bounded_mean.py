"""The mean of updates that the other clients bound: what a federation does by default (`manyeyes.flower.protection`)."""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from manyeyes.components.aggregators import Aggregate, blocks, no_state, replaces_the_sum
from manyeyes.core.algorithm import Doubles, Tensors
from manyeyes.core.population import Ints
from manyeyes.core.registry import component, option
from manyeyes.core.uplink import l2_norms

MIN_CLIENTS_FOR_MEDIAN = 3  # of two norms the median is one client's own
MIN_CLIENTS_FOR_DIRECTIONS = 4  # two that agree do not outvote a third, whose data may differ
CLIP_HELP = "an update longer than this many times the median norm of its round is clipped to that"
REJECT_HELP = "an update longer than this many times the median norm is left out"
OPPOSED_HELP = "an update that points against most others, where these agree, is left out"
WEIGHT_HELP = "the most that a client's weight may be, in equal shares of a round"
MIN_AGREEMENT = 0.4  # cosine above which updates agree
MAX_REFERENCES = 64  # updates that each is compared with, so that the time does not grow with the square of a cohort
TINY_NORM = 1e-30  # instead of a median of 0, above which every norm is then too large


@component("aggregator", "bounded_mean")
class BoundedMean:
    """The weighted mean of updates whose norms, directions and weights are bounded by those of the other clients.

    What a federation does by default, to try it in a simulation.
    """

    max_norm_ratio: float = option(2.0, CLIP_HELP, above=0)
    reject_norm_ratio: float = option(8.0, REJECT_HELP, above=0)
    reject_opposed: bool = option(True, OPPOSED_HELP)
    max_weight_ratio: float = option(1.5, WEIGHT_HELP, minimum=1)

    init, incompatibility = no_state, replaces_the_sum

    def aggregate(self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: Tensors) -> Aggregate:
        norm_K = l2_norms(updates_KW).double().cpu().numpy()
        scale_K = norm_scales(norm_K, self.max_norm_ratio, self.reject_norm_ratio)
        scale_K = scale_K * ~(self.reject_opposed & is_opposed(updates_KW))
        bounded_K = bound_shares(weights_K.double().cpu().numpy(), self.max_weight_ratio) * (scale_K > 0)
        factors_K = torch.from_numpy(bounded_K * scale_K / bounded_K.sum())
        return factors_K.to(updates_KW) @ updates_KW, state


def norm_scales(norm_K: Doubles, max_ratio: float, reject_ratio: float) -> Doubles:
    """Return by how much each update is scaled: to its `max_ratio` times the median norm at most, and 0 to leave it out.

    Updates longer than `reject_ratio` times the median norm are left out. With fewer than three updates, nothing is
    scaled.
    """
    if len(norm_K) < MIN_CLIENTS_FOR_MEDIAN:
        return np.ones(len(norm_K))
    ratio_K = norm_K / max(lower_median(norm_K), TINY_NORM)
    return np.where(ratio_K > reject_ratio, 0.0, np.minimum(1.0, max_ratio / np.maximum(ratio_K, TINY_NORM)))


def is_opposed(updates_KW: Tensor, max_references: int = MAX_REFERENCES) -> NDArray[np.bool_]:
    """Return which updates point against most others.

    An update agrees with the others by the median of its cosines to them. It is opposed if that is negative while most
    updates agree by more than `MIN_AGREEMENT`: where all clients differ, none is opposed.

    Of more than `max_references` clients, each is compared with that many, drawn at random.
    """
    num_clients = len(updates_KW)
    if num_clients < MIN_CLIENTS_FOR_DIRECTIONS:
        return np.zeros(num_clients, bool)
    norm_K = l2_norms(updates_KW)
    rng = np.random.default_rng(norm_K.double().cpu().numpy().view(np.uint64))  # which one client cannot predict
    references = rng.permutation(num_clients)[:max_references]
    cosine_KR = cosines(updates_KW, norm_K, references)
    cosine_KR[references, np.arange(len(references))] = np.inf  # of a client to itself: sorted behind the others
    num_others_K = np.isfinite(cosine_KR).sum(axis=1)
    agreement_K = np.sort(cosine_KR, axis=1)[np.arange(num_clients), num_others_K // 2]
    return (agreement_K < 0) & (lower_median(agreement_K) > MIN_AGREEMENT)


def cosines(updates_KW: Tensor, norm_K: Tensor, references: Ints) -> Doubles:
    """Return the cosine between each update and those of the references [K, R]."""
    scale_K = 1 / norm_K.clamp_min(TINY_NORM)
    cosine_KR = updates_KW.new_zeros(len(updates_KW), len(references), dtype=torch.float64)
    for block in blocks(updates_KW):
        directions = block * scale_K[:, None]
        cosine_KR += (directions @ directions[references].T).double()
    return cosine_KR.cpu().numpy()


def lower_median(norm_K: ArrayLike) -> float:
    """Return the lower of the two middle values: at most an honest one while fewer than half of the clients lie."""
    ascending_K = np.sort(norm_K)
    return float(ascending_K[(len(ascending_K) - 1) // 2])


def bound_shares(weight_K: Doubles, max_weight_ratio: float) -> Doubles:
    """Return the weights, lowered so that none is more than `max_weight_ratio` times an equal share of their sum.

    The limit is the largest value B with B <= max_weight_ratio / K * sum(min(weight, B)).
    """
    max_share = max_weight_ratio / max(int(np.count_nonzero(weight_K)), 1)
    ascending_K = np.sort(weight_K)
    sums_K = np.concatenate([[0.0], np.cumsum(ascending_K)])
    for num_bounded in range(len(weight_K)):
        rest = len(weight_K) - num_bounded
        if num_bounded * max_share >= 1:
            break
        limit = max_share * sums_K[rest] / (1 - num_bounded * max_share)  # B = share * (the rest + num_bounded * B)
        if limit >= ascending_K[rest - 1]:
            return np.minimum(weight_K, limit)
    return weight_K
