"""The cost of a run, as formulas of its users, model and algorithm."""

import math
from dataclasses import astuple, dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Ints, Population
from manyeyes.core.rng import make_rng
from manyeyes.core.state import BYTES_PER_FLOAT
from manyeyes.engines.load_balancing import ClientCost, balance_with_groups


@dataclass(frozen=True)
class Throughput:
    """How long one rank takes, in seconds."""

    per_client: float
    per_step: float
    per_image: float

    def seconds(self, steps_K: Ints, images_K: Ints) -> NDArray[np.float64]:
        return self.per_client + self.per_step * steps_K + self.per_image * images_K


@dataclass(frozen=True)
class Cluster:
    """How fast each rank trains, and how fast ranks exchange tensors."""

    throughput: Throughput
    bandwidth: float  # bytes per second between ranks
    allreduce_cost: float = math.inf  # of a step of a group of ranks, in images; infinite: no groups


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that decide what it costs."""

    num_parameters: int  # W
    num_trainable: int  # P
    num_personal: int = 0  # of W, those that stay with the client
    activation_bytes: int = 0  # that a batch keeps for the backward pass
    batch_bytes: int = 0  # of a batch of images, as floats

    @property
    def num_shared(self) -> int:
        return self.num_parameters - self.num_personal


@dataclass(frozen=True)
class RoundCost:
    """What a round takes."""

    clients: float
    images: float
    seconds: float
    idle_fraction: float  # of the ranks' time, spent waiting for the slowest rank
    single_client: float  # 1 if the slowest rank has one client alone, so that more ranks would not help


def client_cost(algorithm: Algorithm, num_examples_K: Ints) -> tuple[Ints, Ints]:
    """Return the steps and the images of clients with these numbers of examples."""
    needs_full_gradient = algorithm.correction is not None and algorithm.correction.needs_full_gradient
    num_models = 1 if algorithm.personal_model is None else 2

    @cache
    def steps_and_images(num_examples: int) -> tuple[int, int]:
        indices_SB = algorithm.batching.batches(num_examples, np.random.default_rng(0))
        num_images = num_models * int((indices_SB >= 0).sum())
        return num_models * len(indices_SB), num_images + (num_examples if needs_full_gradient else 0)

    costs_K2 = [steps_and_images(num_examples) for num_examples in num_examples_K.tolist()]
    steps_K, images_K = np.array(costs_K2, np.int64).reshape(-1, 2).T
    return steps_K, images_K


def reduce_seconds(model: ModelSize, num_ranks: int, bandwidth: float) -> float:
    """Return the time of a ring all-reduce of W floats: 2 (R - 1) / R of them pass each link."""
    return 2 * (num_ranks - 1) / num_ranks * BYTES_PER_FLOAT * model.num_parameters / bandwidth


def group_seconds(client: ClientCost, group_size: int, model: ModelSize, cluster: Cluster) -> float:
    """Return the time of a client that several ranks train together, with an all-reduce in each step."""
    throughput = cluster.throughput
    images_per_rank = math.ceil(client.num_images / client.num_steps / group_size)
    step = throughput.per_step + throughput.per_image * images_per_rank
    return throughput.per_client + client.num_steps * (step + reduce_seconds(model, group_size, cluster.bandwidth))


def round_cost(
    algorithm: Algorithm, num_examples_K: Ints, model: ModelSize, cluster: Cluster, num_ranks: int
) -> RoundCost:
    """Return the cost of a round of these clients, which are assigned to ranks as in training."""
    steps_K, images_K = client_cost(algorithm, num_examples_K)
    clients = [ClientCost(*cost) for cost in zip(steps_K.tolist(), images_K.tolist(), strict=True)]
    assignment = balance_with_groups(clients, num_ranks, cluster.allreduce_cost)
    seconds_K = cluster.throughput.seconds(steps_K, images_K)
    seconds_R = np.array([seconds_K[indices].sum() for indices in assignment.unsplit])
    for index, ranks in assignment.groups:
        seconds_R[ranks] += group_seconds(clients[index], len(ranks), model, cluster)
    slowest = int(seconds_R.argmax())
    return RoundCost(
        clients=len(clients),
        images=float(images_K.sum()),
        seconds=seconds_R[slowest] + reduce_seconds(model, num_ranks, cluster.bandwidth),
        idle_fraction=1 - seconds_R.mean() / seconds_R[slowest] if seconds_R[slowest] else 0.0,
        single_client=float(len(assignment.unsplit[slowest]) == 1 and num_ranks > 1),
    )


def mean_round(
    algorithm: Algorithm,
    population: Population,
    model: ModelSize,
    cluster: Cluster,
    num_ranks: int,
    seed: int = 0,
    rounds: int = 50,
) -> RoundCost:
    """Return the mean cost of the first rounds of a run, with the clients that the run will sample."""
    costs = []
    for round in range(rounds):
        users = algorithm.sampler.sample(population, make_rng(seed, "cohort", round))
        costs.append(astuple(round_cost(algorithm, population.num_examples[users], model, cluster, num_ranks)))
    return RoundCost(*np.mean(costs, axis=0).tolist())


def server_memory(algorithm: Algorithm, model: ModelSize, num_clients: int) -> int:
    """Return the bytes of weights, their sum and the server's state; a robust rule needs every client's update too."""
    theta = torch.empty(model.num_trainable, device="meta")
    correction = None if algorithm.correction is None else algorithm.correction.init(theta)
    states = [*algorithm.server_optimizer.init(theta).values(), *([] if correction is None else [correction])]
    num_updates = 0 if algorithm.aggregator is None else num_clients
    return BYTES_PER_FLOAT * ((2 + num_updates) * model.num_parameters + sum(state.numel() for state in states))


def client_memory(algorithm: Algorithm, model: ModelSize) -> int:
    """Return the bytes of a training client: two sets of weights, a gradient, states, a batch and its activations."""
    num_floats = 2 * model.num_parameters + model.num_trainable + _opt_state_size(algorithm, model)
    return BYTES_PER_FLOAT * num_floats + client_disk(algorithm, model) + model.batch_bytes + model.activation_bytes


def client_disk(algorithm: Algorithm, model: ModelSize) -> int:
    """Return the bytes that a client keeps between rounds."""
    opt_state = _opt_state_size(algorithm, model) if algorithm.client_optimizer.persist_state else 0
    num_floats = model.num_personal + opt_state
    if algorithm.correction is not None:
        empty = torch.empty(1)
        state, _ = algorithm.correction.client_update(algorithm.correction.init(empty), None, empty, 1.0, empty)
        num_floats += 0 if state is None else model.num_trainable
    if algorithm.compressor is not None and algorithm.compressor.error_feedback:
        num_floats += model.num_shared
    if algorithm.personal_model is not None:
        num_floats += model.num_parameters + opt_state
    return BYTES_PER_FLOAT * num_floats


def _opt_state_size(algorithm: Algorithm, model: ModelSize) -> int:
    theta = torch.empty(model.num_trainable, device="meta")
    return sum(tensor.numel() for tensor in algorithm.client_optimizer.init(theta))
