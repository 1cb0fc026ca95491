"""How much a client counts: the aggregate is sum(weights * updates) / total, over the clients that are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyeyes.components.client_optimizers import SGD
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Ints, Population
from manyeyes.core.registry import register


@register("client_weighting", "examples")
@dataclass(frozen=True)
class WeightByExamples:
    """n_k / n, as FedAvg (McMahan et al. 2017)."""

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> NDArray[np.float64]:
        return num_examples_K.astype(np.float64)

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        return float(num_examples_K.sum())


@register("client_weighting", "uniform")
@dataclass(frozen=True)
class WeightUniformly:
    """1 / K."""

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> NDArray[np.float64]:
        return np.ones(len(num_examples_K))

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        return float(len(num_examples_K))


@register("client_weighting", "fednova")
@dataclass(frozen=True)
class FedNovaWeighting:
    """FedNova: n_k / n, with each update divided by the length of its walk (Wang et al. 2020, section 4).

    With p_k = n_k / n and a_k the weights that a client's walk gives to its gradients, the aggregate is
    tau_eff * sum_k p_k update_k / ||a_k||_1, where tau_eff = sum_k p_k ||a_k||_1.
    """

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if not isinstance(algorithm.client_optimizer, SGD):
            return "FedNova knows the length of an SGD walk alone: use local SGD"
        if algorithm.client_optimizer.persist_state and algorithm.client_optimizer.momentum:
            return "FedNova measures walks that start at rest: do not keep the local momentum between rounds"
        if (
            algorithm.correction is not None
            and algorithm.correction.proximal_strength * algorithm.client_optimizer.lr >= 1
        ):
            return "FedNova needs mu * lr below 1, or walks turn back: lower the proximal strength or the learning rate"
        return None

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> NDArray[np.float64]:
        return num_examples_K / normalization_factors(algorithm, num_steps_K, round)

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        return float(
            num_examples_K.sum() ** 2 / (num_examples_K * normalization_factors(algorithm, num_steps_K, round)).sum()
        )


def normalization_factors(algorithm: Algorithm, num_steps_K: Ints, round: int) -> NDArray[np.float64]:
    """||a_k||_1: how far SGD goes, in learning rates, when every gradient is 1; tau without momentum and pull."""
    local, correct = algorithm.client_optimizer, algorithm.correction
    assert isinstance(local, SGD)
    pull = 0.0 if correct is None else correct.proximal_strength * local.learning_rate(round)
    distance, velocity, lengths = 0.0, 0.0, [0.0]
    for _ in range(int(num_steps_K.max())):
        velocity = local.momentum * velocity + 1 - pull * distance
        distance += velocity
        lengths.append(distance)
    return np.array(lengths)[num_steps_K]
