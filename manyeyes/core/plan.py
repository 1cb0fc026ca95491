"""The plan of a round as pure data: every random decision, the same on every engine and machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Floats, Ints, Population
from manyeyes.core.rng import derive_key, make_rng, make_rngs

ALL, PERSONAL, SHARED = 0, 1, 2  # phases: which layers train in a step
STEP_SEED_STRIDE = 1_000_003  # between the dropout seeds of two steps: more than a model has layers


@dataclass(frozen=True, eq=False)
class ClientPlan:
    """What one client does in one round; index -1 is padding."""

    user: int  # position in the population that trains
    client_id: int  # its id in `population.user_ids`, the same in every view of the data
    num_examples: int  # n_k
    weight: float
    example_indices_SB: Ints
    example_weights_SB: Floats  # in the loss
    augment_uniforms_SBD: Floats | None
    dropout_seeds_S: Ints
    full_indices: Ints | None = None  # all examples of the client and their weights, where a correction needs them
    full_weights: Floats | None = None
    phase_S: Ints | None = None  # ALL, PERSONAL or SHARED; None: always ALL
    stream: int | str = 0  # the name of its random numbers: its id, and how often it was drawn before in this round

    @cached_property
    def num_images(self) -> int:
        """The number of images that its steps see."""
        return int(np.count_nonzero(self.example_indices_SB >= 0))

    @property
    def num_steps(self) -> int:
        return len(self.example_indices_SB)


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """The clients of a round and what each of them does."""

    seed: int
    round: int
    clients: tuple[ClientPlan, ...]

    @property
    def has_phases(self) -> bool:
        """Whether some steps train only a part of the model."""
        return any(client.phase_S is not None for client in self.clients)


def plan_round(
    algorithm: Algorithm, population: Population, seed: int, round: int, num_augment_uniforms: int = 0
) -> RoundPlan:
    """Sample the clients of a round and make every random choice of their training."""
    users = algorithm.sampler.sample(population, make_rng(seed, "cohort", round))
    if not len(users):
        return RoundPlan(seed, round, ())
    client_ids, num_held = population.user_ids[users].tolist(), population.num_examples[users].tolist()
    streams = random_streams(client_ids)
    batches = draw_batches(algorithm, num_held, seed, round, streams)
    num_examples_K = np.array([algorithm.batching.num_examples(n) for n in num_held])
    num_steps_K = np.array([len(positions_SB) for positions_SB in batches])
    weights_K = algorithm.client_weighting.weights(algorithm, num_examples_K, num_steps_K, round)
    phases = [algorithm.batching.phases(num_steps) for num_steps in num_steps_K.tolist()]
    uniforms = draw_uniforms(batches, seed, round, streams, num_augment_uniforms)
    seeds_K = np.array([derive_key(seed, "dropout", round, stream) % 2**40 for stream in streams])
    steps = _client_steps(batches, population.offsets[users], seeds_K)

    clients = []
    needs_full_gradient = algorithm.correction is not None and algorithm.correction.needs_full_gradient
    for k, (user, client_id) in enumerate(zip(users.tolist(), client_ids, strict=True)):
        indices_SB, weights_SB, seeds_S = steps[k]
        full_indices = population.examples(user) if needs_full_gradient else None
        full_weights = example_weights(algorithm, population, user)
        if full_weights is not None:
            weights_SB *= full_weights[batches[k]]
        elif full_indices is not None:
            full_weights = np.ones(len(full_indices), np.float32)
        clients.append(
            ClientPlan(
                user=user,
                client_id=client_id,
                num_examples=int(num_examples_K[k]),
                weight=float(weights_K[k]),
                example_indices_SB=indices_SB,
                example_weights_SB=weights_SB,
                augment_uniforms_SBD=uniforms[k],
                dropout_seeds_S=seeds_S,
                full_indices=full_indices,
                full_weights=full_weights,
                phase_S=phases[k],
                stream=streams[k],
            )
        )
    return RoundPlan(seed, round, tuple(clients))


def random_streams(client_ids: Sequence[int]) -> list[int | str]:
    """Return the name of each client's random numbers: its id; repeated draws of a client in a round are independent."""
    num_draws: Counter[int] = Counter()
    streams: list[int | str] = []
    for client_id in client_ids:
        streams.append(f"{client_id}/{num_draws[client_id]}" if num_draws[client_id] else client_id)
        num_draws[client_id] += 1
    return streams


def draw_batches(
    algorithm: Algorithm, num_held: list[int], seed: int, round: int, streams: Sequence[int | str]
) -> list[Ints]:
    """Return the positions that each client trains on, among its examples [S, B]."""
    rngs = make_rngs(seed, "draw", round, streams)
    batches = [algorithm.batching.batches(n, rng) for n, rng in zip(num_held, rngs, strict=True)]
    if any((positions_SB >= n).any() for positions_SB, n in zip(batches, num_held, strict=True)):
        name = type(algorithm.batching).__name__
        raise ValueError(f"batching={name} returned a position beyond the examples of a client: return 0..num_held-1")
    return batches


def draw_uniforms(
    batches: Sequence[Ints], seed: int, round: int, streams: Sequence[int | str], num_augment_uniforms: int
) -> list[Floats | None]:
    """Return the random numbers of each client's augmentation [S, B, D]; None without augmentation."""
    if not num_augment_uniforms:
        return [None] * len(batches)
    shapes = [(*positions_SB.shape, num_augment_uniforms) for positions_SB in batches]
    rngs = make_rngs(seed, "augment", round, streams)
    return [rng.random(shape, np.float32) for shape, rng in zip(shapes, rngs, strict=True)]


def example_weights(algorithm: Algorithm, population: Population, user: int) -> Floats | None:
    """Return the weight of each example that a user holds; None where all count the same."""
    if algorithm.example_weighting is None:
        return None
    counts = population.class_counts
    if algorithm.privacy is not None:  # private training must not read the labels of other users
        counts = np.ones(len(population.classes), np.int64)
    class_weights = algorithm.example_weighting.class_weights(population.histogram(user), counts)
    return class_weights[population.labels.targets(population.examples(user))]


def _client_steps(batches: list[Ints], offsets_K: Ints, seeds_K: Ints) -> list[tuple[Ints, Floats, Ints]]:
    """Return example indices, weights and dropout seeds of each client's steps.

    They are views of three arrays of the T steps of all clients: many times faster than arrays for each client.
    """
    num_steps_K = np.array([len(positions_SB) for positions_SB in batches])
    ends_K = np.cumsum(num_steps_K)
    positions_TB = np.concatenate(batches)
    step_T = np.arange(ends_K[-1]) - np.repeat(ends_K - num_steps_K, num_steps_K)
    is_real_TB = positions_TB >= 0
    indices_TB = np.where(is_real_TB, positions_TB + np.repeat(offsets_K, num_steps_K)[:, None], -1)
    seeds_T = np.repeat(seeds_K, num_steps_K) + STEP_SEED_STRIDE * step_T
    arrays = (indices_TB, is_real_TB.astype(np.float32), seeds_T)
    return list(zip(*(np.split(array, ends_K[:-1]) for array in arrays), strict=True))
