"""What a run takes, as formulas of its users, model and algorithm. Axes as in `algorithm`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from manyeyes.algorithm import FLOAT, Algorithm
from manyeyes.chance import generator
from manyeyes.engine.sharing import Job, share_jobs
from manyeyes.population import Ints, Population


@dataclass(frozen=True)
class Pace:
    """Seconds on one rank: so many for each client, for each of its steps and for each image."""

    client: float
    step: float
    image: float

    def seconds(self, steps_K: Ints, images_K: Ints) -> NDArray[np.float64]:
        return self.client + self.step * steps_K + self.image * images_K


@dataclass(frozen=True)
class Model:
    """What counts of a model."""

    numbers: int  # W
    trained: int  # P
    personal: int = 0  # of W, those that stay with the client
    activations: int = 0  # bytes that a batch keeps for the backward pass
    batch: int = 0  # bytes of a batch of images, as floats

    @property
    def shared(self) -> int:
        return self.numbers - self.personal


@dataclass(frozen=True)
class Network:
    """What lies between ranks."""

    bandwidth: float  # bytes a second
    agreeing: float = math.inf  # what a team's all-reduce costs in images, as sharing counts it; infinite: no teams


@dataclass(frozen=True)
class Round:
    """What a round takes, as the mean over rounds."""

    clients: float
    images: float
    seconds: float
    idle: float  # share of the ranks' time that is spent waiting for the slowest
    longest: float  # share of the rounds whose slowest rank has one client alone, which more ranks would not help


def work_of(algorithm: Algorithm, held_K: Ints) -> tuple[Ints, Ints]:
    """Steps and images of clients that hold so many examples."""

    @cache
    def one(held: int) -> tuple[int, int]:
        rows = algorithm.draw.rows(held, np.random.default_rng(0))
        whole = held if algorithm.correct is not None and algorithm.correct.whole else 0
        times = 1 if algorithm.beside is None else 2
        return times * len(rows), times * int((rows >= 0).sum()) + whole

    steps_K, images_K = np.array([one(held) for held in held_K.tolist()], np.int64).reshape(-1, 2).T
    return steps_K, images_K


def reduce_seconds(model: Model, ranks: int, network: Network) -> float:
    """A ring's all-reduce of W floats: 2 (R - 1) / R of them go over each link."""
    return 2 * (ranks - 1) / ranks * FLOAT * model.numbers / network.bandwidth


def team_seconds(pace: Pace, job: Job, members: int, model: Model, network: Network) -> float:
    """What each of several ranks that train a client together takes for it: an all-reduce a step."""
    a_step = pace.step + pace.image * math.ceil(job.images / job.steps / members)
    return pace.client + job.steps * (a_step + reduce_seconds(model, members, network))


def mean_round(
    algorithm: Algorithm,
    population: Population,
    pace: Pace,
    model: Model,
    ranks: int,
    network: Network,
    seed: int = 0,
    rounds: int = 50,
) -> Round:
    """Over the first rounds of the run itself: its own cohorts, shared out as they will be."""
    clients, images, seconds, idle, longest = [], [], [], [], []
    for round in range(rounds):
        users = algorithm.cohort.select(population, generator(seed, "cohort", round))
        steps_K, images_K = work_of(algorithm, population.sizes[users])
        jobs = [Job(*pair) for pair in zip(steps_K.tolist(), images_K.tolist(), strict=True)]
        shares = share_jobs(jobs, ranks, network.agreeing)
        cost_K = pace.seconds(steps_K, images_K)
        loads_R = np.array([cost_K[share].sum() for share in shares.whole])
        for place, team in shares.teams:
            loads_R[team] += team_seconds(pace, jobs[place], len(team), model, network)
        slowest = int(loads_R.argmax())
        clients.append(len(users))
        images.append(images_K.sum())
        seconds.append(loads_R[slowest] + reduce_seconds(model, ranks, network))
        idle.append(1 - loads_R.mean() / loads_R[slowest] if loads_R[slowest] else 0.0)
        longest.append(len(shares.whole[slowest]) == 1 and ranks > 1)
    return Round(*(float(np.mean(values)) for values in (clients, images, seconds, idle, longest)))


def server_memory(algorithm: Algorithm, model: Model, clients: int) -> int:
    """Weights, their sum, what optimizer and correction keep; with robust aggregation every client's update too."""
    theta = torch.empty(model.trained, device="meta")
    kept = sum(tensor.numel() for tensor in algorithm.server.start(theta).values())
    if algorithm.correct is not None and (state := algorithm.correct.start(theta)) is not None:
        kept += state.numel()
    apart = 0 if algorithm.aggregate is None else clients * model.numbers
    return FLOAT * (2 * model.numbers + kept + apart)


def client_memory(algorithm: Algorithm, model: Model) -> int:
    """The server's weights and its own, a gradient, the optimizer's state, what it keeps, a batch and activations."""
    numbers = 2 * model.numbers + model.trained + _slots(algorithm, model)
    return FLOAT * numbers + client_disk(algorithm, model) + model.batch + model.activations


def client_disk(algorithm: Algorithm, model: Model) -> int:
    """Bytes that a client keeps between rounds."""
    numbers, kept = model.personal, _slots(algorithm, model) if algorithm.local.keep else 0
    if algorithm.correct is not None:
        empty = torch.empty(1)
        own, _ = algorithm.correct.finish(algorithm.correct.start(empty), None, empty, 1.0, empty)
        numbers += 0 if own is None else model.trained
    if algorithm.compress is not None and algorithm.compress.feedback:
        numbers += model.shared
    if algorithm.beside is not None:  # a whole model, trained in its own right
        numbers += model.numbers + kept
    return FLOAT * (numbers + kept)


def _slots(algorithm: Algorithm, model: Model) -> int:
    """Numbers of the local optimizer's state."""
    return sum(slot.numel() for slot in algorithm.local.start(torch.empty(model.trained, device="meta")))
