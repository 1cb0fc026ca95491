"""A second implementation of local training in NumPy float64, on a linear softmax model.

Only the random choices (clients and examples) are the package's; every gradient, step, weight and state is computed
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import ClientPlan, RoundPlan, plan_round
from manyeyes.core.population import MultiLabels, Population, SingleLabels
from manyeyes.core.round import run_round
from manyeyes.core.state import RoundMetrics, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.flat import FlatModel

Vector = NDArray[np.float64]
GradFn = Callable[[Vector, NDArray[np.int64], Any], Vector]
SEED = 3
LR = 0.1
CLASSES = ("cat", "dog", "owl")
LABELS_BY_USER = (
    [0, 1, 2, 0, 1, 2, 2],
    [0, 1, 0],
    [2, 1, 2, 0, 0],
    [1],
    [0, 2, 1, 1, 0, 2],
)  # user 1 has no owl, user 3 only a dog
LABELS = np.concatenate(LABELS_BY_USER)
SIZES = np.array([len(labels) for labels in LABELS_BY_USER])
OWNERS = np.repeat(np.arange(5), SIZES)
# several labels per image, or none, repeated over the images
LABEL_SETS: tuple[list[int], ...] = ([0], [0, 2], [], [1, 2], [0, 1, 2], [1])
MULTI_HOT = np.array([[c in LABEL_SETS[i % 6] for c in range(3)] for i in range(22)], float)
IMAGES = np.random.default_rng(1).integers(0, 256, (22, 2, 2, 3), dtype=np.uint8)
INPUTS = (
    ((IMAGES / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2).reshape(22, 12)
)  # channels first, as a module flattens them
THETA = np.random.default_rng(2).normal(0, 0.1, 39).astype(np.float32).astype(np.float64)
POPULATION = Population.from_arrays(IMAGES, SingleLabels(LABELS, CLASSES), OWNERS)
MULTI_LABEL_POPULATION = Population.from_arrays(
    IMAGES, MultiLabels.from_lists([LABEL_SETS[i % 6] for i in range(22)], CLASSES), OWNERS
)


class AlgorithmRun:
    """A run of an algorithm by the package, one round at a time."""

    def __init__(self, algorithm: Algorithm, population: Population = POPULATION) -> None:
        algorithm.validate(population)
        module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        flat = FlatModel(module)
        flat.write(torch.tensor(THETA, dtype=torch.float32))
        self.algorithm, self.population = algorithm, population
        self.engine = ReferenceEngine(EngineSetup(flat, population, Preprocess(), torch.device("cpu")))
        self.state = init_state(algorithm, flat.read(), flat.num_trainable)
        self.clients: dict[int, dict[str, torch.Tensor]] = {}

    def plan(self) -> RoundPlan:
        """Return the plan of the next round."""
        return plan_round(self.algorithm, self.population, SEED, self.state.round)

    def run_round(self) -> RoundMetrics:
        self.state, metrics = run_round(self.algorithm, self.state, self.population, self.engine, self.clients, SEED)
        return metrics

    def assert_at(self, theta: Vector) -> None:
        np.testing.assert_allclose(self.state.weights.numpy(), theta, rtol=0, atol=1e-6)


def softmax_grad(theta: Vector, rows: NDArray[np.int64], weights: Any = 1.0) -> Vector:
    """Return the gradient of sum(w l) / sum(w) for the cross-entropy l; 0 if all weights are 0."""
    logits = INPUTS[rows] @ theta[:36].reshape(3, 12).T + theta[36:]
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    return _parameter_grad(probabilities - np.eye(3)[LABELS[rows]], rows, weights)


def sigmoid_grad(theta: Vector, rows: NDArray[np.int64], weights: Any = 1.0) -> Vector:
    """Return the gradient for the binary cross-entropy, averaged over classes."""
    logits = INPUTS[rows] @ theta[:36].reshape(3, 12).T + theta[36:]
    return _parameter_grad((1 / (1 + np.exp(-logits)) - MULTI_HOT[rows]) / 3, rows, weights)


def _parameter_grad(errors: Vector, rows: NDArray[np.int64], weights: Any) -> Vector:
    weights = np.broadcast_to(weights, len(rows))
    if weights.sum() == 0:
        return np.zeros(39)
    errors = errors * (weights / weights.sum())[:, None]
    return np.concatenate([(errors.T @ INPUTS[rows]).ravel(), errors.sum(0)])


def local_sgd(
    theta: Vector,
    client: ClientPlan,
    lr: float = LR,
    *,
    grad_fn: GradFn = softmax_grad,
    example_weight: Callable[[NDArray[np.int64]], Any] = lambda rows: 1.0,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    max_grad_norm: float = np.inf,
    gradient_scale: float = 1.0,
    proximal_strength: float = 0.0,
    offset: Any = 0.0,
    velocity: Any = 0.0,
) -> tuple[Vector, Vector]:
    """Return a client's weights and velocity after local SGD over its planned batches."""
    begin = theta
    for row in client.example_indices_SB:
        batch = row[row >= 0]
        grad = grad_fn(theta, batch, example_weight(batch))
        grad = grad * min(1.0, max_grad_norm / float(np.linalg.norm(grad))) if grad.any() else grad
        grad = gradient_scale * grad + proximal_strength * (theta - begin) + offset + weight_decay * theta
        velocity = momentum * velocity + grad
        theta = theta - lr * velocity
    return theta, velocity


def importance(target: Vector, user: int) -> Callable[[NDArray[np.int64]], Vector]:
    """Return the function that gives p(y) / q(y) of a user's examples."""
    fractions = np.bincount(LABELS_BY_USER[user], minlength=3) / SIZES[user]
    return lambda rows: (target / np.where(fractions, fractions, 1))[LABELS[rows]]


def pseudo_gradient(theta: Vector, plan: RoundPlan, **options: Any) -> Vector:
    """Return sum_k n_k / n (theta_t - theta_k)."""
    sizes = np.array([SIZES[c.user] for c in plan.clients])
    updates = np.array([theta - local_sgd(theta, c, **options)[0] for c in plan.clients])
    return sizes / sizes.sum() @ updates
