"""How much a client counts in the update of a round, and how much an example counts in the loss."""

import numpy as np

from manyeyes.components.client_optimizers import SGD
from manyeyes.core.algorithm import Algorithm, Doubles
from manyeyes.core.population import Floats, Ints, Population
from manyeyes.core.registry import component, option


@component("client_weighting", "examples")
class WeightByExamples:
    """n_k / n, as FedAvg (McMahan et al. 2017)."""

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> Doubles:
        return num_examples_K.astype(np.float64)

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        return float(num_examples_K.sum())


@component("client_weighting", "uniform")
class WeightUniformly:
    """1 / K."""

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> Doubles:
        return np.ones(len(num_examples_K))

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        return float(len(num_examples_K))


@component("client_weighting", "fednova")
class FedNovaWeighting:
    """FedNova's normalized averaging: n_k / n, with each update divided by its effective steps.

    With p_k = n_k / n and a_k the weights of a client's gradients in its update, the update of the round is
    tau_eff * sum_k p_k update_k / ||a_k||_1, where tau_eff = sum_k p_k ||a_k||_1 (Wang et al. 2020, section 4).
    """

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        optimizer, correction = algorithm.client_optimizer, algorithm.correction
        if not isinstance(optimizer, SGD):
            return "client_weighting=fednova knows the effective steps of SGD only: set client_optimizer=sgd"
        if optimizer.persist_state and optimizer.momentum:
            return "client_weighting=fednova assumes momentum that starts at 0: set persist_state=false"
        if correction is not None and correction.proximal_strength * optimizer.lr >= 1:
            return "client_weighting=fednova needs proximal strength * lr below 1: lower one of them"
        return None

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> Doubles:
        return num_examples_K / normalization_factors(algorithm, num_steps_K, round)

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        factors_K = normalization_factors(algorithm, num_steps_K, round)
        return float(num_examples_K.sum() ** 2 / (num_examples_K * factors_K).sum())


def normalization_factors(algorithm: Algorithm, num_steps_K: Ints, round: int) -> Doubles:
    """Return ||a_k||_1: how far SGD moves, in learning rates, if every gradient is 1."""
    optimizer, correction = algorithm.client_optimizer, algorithm.correction
    assert isinstance(optimizer, SGD), "FedNova is refused with other optimizers before round 1"
    damping = 0.0 if correction is None else correction.proximal_strength * optimizer.learning_rate(round)
    distance, velocity, distances = 0.0, 0.0, [0.0]
    for _ in range(int(num_steps_K.max())):
        velocity = optimizer.momentum * velocity + 1 - damping * distance
        distance += velocity
        distances.append(distance)
    return np.array(distances)[num_steps_K]


@component("example_weighting", "importance")
class ImportanceReweighting:
    """FedIR: p(y) / q_k(y), normalized over the batch by the loss (Hsu et al. 2020, Eq. 3 and 4)."""

    target_distribution: tuple[float, ...] | None = option(None, "p(y), a value per class; none: the population's own")

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if population.labels.multi:
            return (
                "example_weighting=importance needs one class per image, and this data has several labels per image: "
                "set example_weighting=none"
            )
        target, num_classes = self.target_distribution, len(population.classes)
        if target is not None and len(target) != num_classes:
            return f"target_distribution has {len(target)} values for {num_classes} classes: give one value per class"
        if target is not None and not (min(target) >= 0 and abs(sum(target) - 1) <= 1e-6):
            return f"target_distribution must be at least 0 everywhere and sum to 1; it sums to {sum(target):.6g}"
        return None

    def class_weights(self, client_counts: Ints, population_counts: Ints) -> Floats:
        """Return p(y) / q_k(y) for the classes that the client holds, and 0 for the others."""
        target = self.target_distribution
        target_C = population_counts / population_counts.sum() if target is None else np.asarray(target)
        client_C = client_counts / client_counts.sum()
        return np.divide(target_C, client_C, out=np.zeros(len(client_C)), where=client_C > 0).astype(np.float32)
