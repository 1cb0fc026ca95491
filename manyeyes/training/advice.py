"""Advice about settings that work and rarely give what they are meant to."""

import numpy as np

from manyeyes.components.batching import EpochBatching
from manyeyes.components.samplers import Centralized
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.rng import make_rng


def batch_size_advice(algorithm: Algorithm, population: Population) -> str:
    """Return what to set if half of the clients train one step on a batch that is at least half empty; else nothing.

    Advice is about the default of the batch size: another one was chosen.
    """
    num_images, batching = int(np.median(population.num_examples)), algorithm.batching
    is_default = batching.batch_size == EpochBatching().batch_size and not isinstance(algorithm.sampler, Centralized)
    num_steps = len(batching.batches(num_images, make_rng(0, "draw")))
    if not is_default or num_steps != 1 or 2 * num_images > batching.batch_size:
        return ""
    smaller = f"algorithm.batch_size to {2 ** (num_images.bit_length() - 2)} or less, or " if num_images > 3 else ""
    return (
        f"A round is one small step for most clients: half of them have {num_images} images or fewer, and a batch has "
        f"{batching.batch_size}. For more local training, set {smaller}algorithm.epochs to 5 or more."
    )
