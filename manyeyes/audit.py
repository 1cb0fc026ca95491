"""An attack on our own private training: canaries take part by a coin, and are looked for in the model.

Each canary is a user whose update points in a direction of its own, as long as the clip allows: the worst case that is
accounted for. All are planted in one training (Steinke, Nasr and Jagielski 2023).
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from manyeyes.algorithm import Algorithm
from manyeyes.chance import generator
from manyeyes.data.augment import Augment
from manyeyes.engine.choice import Means, choose_engine
from manyeyes.engine.ranks import Ranks
from manyeyes.models.flat import FlatModel
from manyeyes.parts import SGD, Epochs, Equally, Poisson, ServerSGD
from manyeyes.parts.auditing import least_epsilon, least_gaussian_epsilon
from manyeyes.parts.privacy import CentralDP, Clip
from manyeyes.parts.require import count
from manyeyes.population import Population, SingleLabels
from manyeyes.round import play_round, start

CLIP = 0.01  # a canary's update is 70 times as long
SHARE = 0.5  # of the users that take part in a round, on average
GUESSES = 20  # canaries for each guess: only those that the model says most about
LIT = 300  # inputs that ordinary users light, and no canary
BLACK_IS_ZERO = Augment(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True)
class Audit:
    """What was promised, and what an attack has proved at 95 % confidence."""

    promised: float
    delta: float
    users: int
    canaries: int
    rounds: int
    guesses: int
    right: int
    least: float  # whatever the mechanism is
    least_gaussian: float  # as its noise is Gaussian

    @property
    def kept(self) -> bool:
        return max(self.least, self.least_gaussian) <= self.promised

    def words(self) -> str:
        verdict = "the promise holds as far as this attack can tell" if self.kept else "THE PROMISE IS BROKEN"
        return (
            f"promised: epsilon {self.promised:g} at delta {self.delta:g}, over {self.rounds} rounds of about half of "
            f"{self.users:,} users\n"
            f"attacked: {self.right} of {self.guesses} guesses who of {self.canaries:,} canaries was there were right\n"
            f"proved:   epsilon is at least {self.least:.2f} at 95 % confidence, whatever the mechanism\n"
            f"          epsilon is at least {self.least_gaussian:.2f} at 95 % confidence, as the noise is Gaussian\n"
            f"verdict:  {verdict}"
        )


def audit(
    epsilon: float = 2.0,
    delta: float = 1e-5,
    users: int = 200,
    canaries: int = 4000,
    rounds: int = 8,
    seed: int = 0,
    engine: str = "reference",
    reproducible_noise: bool = False,
) -> Audit:
    """Train privately with canaries among the users, and guess from the model which of them were there."""
    for name, value, least in (("users", users, 1), ("canaries", canaries, 2 * GUESSES), ("rounds", rounds, 1)):
        count(name, value, least)
    present = generator(seed, "audit").random(canaries) < 0.5
    population = _population(users, present, seed)
    everyone = len(population.users)
    algorithm = Algorithm(Poisson(round(SHARE * everyone)), Epochs(1, 2), SGD(1.0), Equally(), ServerSGD(1.0))
    privacy = CentralDP(epsilon, delta=delta, clip=Clip(CLIP), reproducible_noise=reproducible_noise)
    algorithm = replace(algorithm, privacy=privacy.settled(algorithm, population, rounds))
    scores = _scores(algorithm, population, canaries, rounds, seed, engine)

    guesses = canaries // GUESSES // 2 * 2
    order = np.argsort(scores)
    right = int(present[order[-guesses // 2 :]].sum() + (~present[order[: guesses // 2]]).sum())
    middle = rounds * SHARE / 2  # between where those that took part and those that did not are expected
    false_alarms, misses = int((scores[~present] > middle).sum()), int((scores[present] <= middle).sum())
    return Audit(
        promised=epsilon,
        delta=delta,
        users=everyone,
        canaries=canaries,
        rounds=rounds,
        guesses=guesses,
        right=right,
        least=least_epsilon(canaries, guesses, right, delta),
        least_gaussian=least_gaussian_epsilon(false_alarms, int((~present).sum()), misses, int(present.sum()), delta),
    )


def _population(users: int, present: NDArray[np.bool_], seed: int) -> Population:
    """Canaries, each with one photo that lights one input of its own, and users with photos of other inputs."""
    canaries, rng = len(present), generator(seed, "audited users")
    side = math.ceil(math.sqrt((canaries + LIT) / 3))
    own = np.flatnonzero(present)
    photos = np.zeros((len(own) + users, 3 * side * side), np.uint8)
    photos[np.arange(len(own)), own] = 255
    photos[len(own) :, canaries:] = rng.integers(0, 256, (users, photos.shape[1] - canaries))
    images = photos.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)
    labels = np.concatenate([np.zeros(len(own), np.int64), rng.integers(0, 2, users)])
    return Population.of(np.ascontiguousarray(images), SingleLabels(labels, ("yes", "no")), np.arange(len(images)))


def _scores(
    algorithm: Algorithm, population: Population, canaries: int, rounds: int, seed: int, name: str
) -> NDArray[np.float64]:
    """How far the model moved in each canary's direction, in what one round can move it: clip / cohort."""
    inputs = int(np.prod(population.image_shape))
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(inputs, 2, bias=False)))
    engine = choose_engine(name, flat, population, BLACK_IS_ZERO, torch.device("cpu"), Means(compile=False))
    state = start(algorithm, torch.zeros(flat.size), flat.trained)
    with ExitStack() as stack:
        if isinstance(engine, Ranks):
            stack.enter_context(engine)
        for _ in range(rounds):
            state, _ = play_round(algorithm, state, population, engine, {}, seed)
    assert isinstance(algorithm.cohort, Poisson)
    yes, no = state.weights.double().view(2, inputs)[:, :canaries].numpy()
    return (yes - no) / math.sqrt(2) * algorithm.cohort.clients / CLIP
