"""What a run takes, as formulas of its users, model and algorithm. Axes as in `algorithm`."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
    """Seconds on one rank: so many for each client, for each of its steps and for each image."""

    client: float
    step: float
    image: float

    def seconds(self, steps_K: Ints, images_K: Ints) -> NDArray[np.float64]:
        return self.client + self.step * steps_K + self.image * images_K


@dataclass(frozen=True)
class ModelSize:
    """What counts of a model."""

    num_parameters: int  # W
    num_trainable: int  # P
    personal: int = 0  # of W, those that stay with the client
    activations: int = 0  # bytes that a batch keeps for the backward pass
    batch: int = 0  # bytes of a batch of images, as floats

    @property
    def num_shared(self) -> int:
        return self.num_parameters - self.personal


@dataclass(frozen=True)
class Network:
    """What lies between ranks."""

    bandwidth: float  # bytes a second
    allreduce_cost: float = (
        math.inf
    )  # what a team's all-reduce costs in images, as sharing counts it; infinite: no teams


@dataclass(frozen=True)
class RoundCost:
    """What a round takes, as the mean over rounds."""

    clients: float
    images: float
    seconds: float
    idle_fraction: float  # share of the ranks' time that is spent waiting for the slowest
    longest: float  # share of the rounds whose slowest rank has one client alone, which more ranks would not help


def client_cost(algorithm: Algorithm, held_K: Ints) -> tuple[Ints, Ints]:
    """Steps and images of clients that hold so many examples."""

    @cache
    def one(held: int) -> tuple[int, int]:
        rows = algorithm.batching.batches(held, np.random.default_rng(0))
        whole = held if algorithm.correction is not None and algorithm.correction.needs_full_gradient else 0
        times = 1 if algorithm.personal_model is None else 2
        return times * len(rows), times * int((rows >= 0).sum()) + whole

    steps_K, images_K = np.array([one(held) for held in held_K.tolist()], np.int64).reshape(-1, 2).T
    return steps_K, images_K


def reduce_seconds(model: ModelSize, ranks: int, network: Network) -> float:
    """A ring's all-reduce of W floats: 2 (R - 1) / R of them go over each link."""
    return 2 * (ranks - 1) / ranks * BYTES_PER_FLOAT * model.num_parameters / network.bandwidth


def team_seconds(pace: Throughput, job: ClientCost, members: int, model: ModelSize, network: Network) -> float:
    """What each of several ranks that train a client together takes for it: an all-reduce a step."""
    a_step = pace.step + pace.image * math.ceil(job.num_images / job.num_steps / members)
    return pace.client + job.num_steps * (a_step + reduce_seconds(model, members, network))


def mean_round(
    algorithm: Algorithm,
    population: Population,
    pace: Throughput,
    model: ModelSize,
    ranks: int,
    network: Network,
    seed: int = 0,
    rounds: int = 50,
) -> RoundCost:
    """Over the first rounds of the run itself: its own cohorts, shared out as they will be."""
    clients, images, seconds, idle, longest = [], [], [], [], []
    for round in range(rounds):
        users = algorithm.sampler.sample(population, make_rng(seed, "cohort", round))
        steps_K, images_K = client_cost(algorithm, population.num_examples[users])
        jobs = [ClientCost(*pair) for pair in zip(steps_K.tolist(), images_K.tolist(), strict=True)]
        shares = balance_with_groups(jobs, ranks, network.allreduce_cost)
        cost_K = pace.seconds(steps_K, images_K)
        loads_R = np.array([cost_K[share].sum() for share in shares.unsplit])
        for place, team in shares.groups:
            loads_R[team] += team_seconds(pace, jobs[place], len(team), model, network)
        slowest = int(loads_R.argmax())
        clients.append(len(users))
        images.append(images_K.sum())
        seconds.append(loads_R[slowest] + reduce_seconds(model, ranks, network))
        idle.append(1 - loads_R.mean() / loads_R[slowest] if loads_R[slowest] else 0.0)
        longest.append(len(shares.unsplit[slowest]) == 1 and ranks > 1)
    return RoundCost(*(float(np.mean(values)) for values in (clients, images, seconds, idle, longest)))


def server_memory(algorithm: Algorithm, model: ModelSize, clients: int) -> int:
    """Weights, their sum, what optimizer and correction keep; with robust aggregation every client's update too."""
    theta = torch.empty(model.num_trainable, device="meta")
    kept = sum(tensor.numel() for tensor in algorithm.server_optimizer.init(theta).values())
    if algorithm.correction is not None and (state := algorithm.correction.init(theta)) is not None:
        kept += state.numel()
    apart = 0 if algorithm.aggregator is None else clients * model.num_parameters
    return BYTES_PER_FLOAT * (2 * model.num_parameters + kept + apart)


def client_memory(algorithm: Algorithm, model: ModelSize) -> int:
    """The server's weights and its own, a gradient, the optimizer's state, what it keeps, a batch and activations."""
    numbers = 2 * model.num_parameters + model.num_trainable + _slots(algorithm, model)
    return BYTES_PER_FLOAT * numbers + client_disk(algorithm, model) + model.batch + model.activations


def client_disk(algorithm: Algorithm, model: ModelSize) -> int:
    """Bytes that a client keeps between rounds."""
    numbers, kept = model.personal, _slots(algorithm, model) if algorithm.client_optimizer.persist_state else 0
    if algorithm.correction is not None:
        empty = torch.empty(1)
        own, _ = algorithm.correction.client_update(algorithm.correction.init(empty), None, empty, 1.0, empty)
        numbers += 0 if own is None else model.num_trainable
    if algorithm.compressor is not None and algorithm.compressor.error_feedback:
        numbers += model.num_shared
    if algorithm.personal_model is not None:  # a whole model, trained in its own right
        numbers += model.num_parameters + kept
    return BYTES_PER_FLOAT * (numbers + kept)


def _slots(algorithm: Algorithm, model: ModelSize) -> int:
    """Numbers of the local optimizer's state."""
    return sum(
        slot.numel() for slot in algorithm.client_optimizer.init(torch.empty(model.num_trainable, device="meta"))
    )
