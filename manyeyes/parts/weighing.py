"""How much a client counts: the aggregate is sum(weights * updates) / total, over the clients that are kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from manyeyes.algorithm import Algorithm
from manyeyes.parts.local import SGD
from manyeyes.population import Ints, Population


@dataclass(frozen=True)
class ByExamples:
    """n_k / n, as FedAvg (McMahan et al. 2017)."""

    def weights(self, algorithm: Algorithm, sizes_K: Ints, steps_K: Ints, round: int) -> NDArray[np.float64]:
        return sizes_K.astype(np.float64)

    def total(self, algorithm: Algorithm, sizes_K: Ints, steps_K: Ints, round: int) -> float:
        return float(sizes_K.sum())


@dataclass(frozen=True)
class Equally:
    """1 / K."""

    def weights(self, algorithm: Algorithm, sizes_K: Ints, steps_K: Ints, round: int) -> NDArray[np.float64]:
        return np.ones(len(sizes_K))

    def total(self, algorithm: Algorithm, sizes_K: Ints, steps_K: Ints, round: int) -> float:
        return float(len(sizes_K))


@dataclass(frozen=True)
class ByWalk:
    """FedNova: n_k / n, with each update divided by the length of its walk (Wang et al. 2020, section 4).

    With p_k = n_k / n and a_k the weights that a client's walk gives to its gradients, the aggregate is
    tau_eff * sum_k p_k update_k / ||a_k||_1, where tau_eff = sum_k p_k ||a_k||_1.
    """

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        if not isinstance(algorithm.local, SGD):
            return "FedNova knows the length of an SGD walk alone: use local SGD"
        if algorithm.local.keep and algorithm.local.momentum:
            return "FedNova measures walks that start at rest: do not keep the local momentum between rounds"
        if algorithm.correct is not None and algorithm.correct.pull * algorithm.local.lr >= 1:
            return "FedNova needs mu * lr below 1, or walks turn back: lower the proximal strength or the learning rate"
        return None

    def weights(self, algorithm: Algorithm, sizes_K: Ints, steps_K: Ints, round: int) -> NDArray[np.float64]:
        return sizes_K / walk_lengths(algorithm, steps_K, round)

    def total(self, algorithm: Algorithm, sizes_K: Ints, steps_K: Ints, round: int) -> float:
        return float(sizes_K.sum() ** 2 / (sizes_K * walk_lengths(algorithm, steps_K, round)).sum())


def walk_lengths(algorithm: Algorithm, steps_K: Ints, round: int) -> NDArray[np.float64]:
    """||a_k||_1: how far SGD goes, in learning rates, when every gradient is 1; tau without momentum and pull."""
    local, correct = algorithm.local, algorithm.correct
    assert isinstance(local, SGD)
    pull = 0.0 if correct is None else correct.pull * local.rate(round)
    distance, velocity, lengths = 0.0, 0.0, [0.0]
    for _ in range(int(steps_K.max())):
        velocity = local.momentum * velocity + 1 - pull * distance
        distance += velocity
        lengths.append(distance)
    return np.array(lengths)[steps_K]
