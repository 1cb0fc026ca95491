"""Advice about settings and data that work and rarely give what they are meant to."""

import math
from collections.abc import Iterator

import numpy as np

from manyeyes.algorithms import local_only
from manyeyes.components.batching import EpochBatching
from manyeyes.components.samplers import Centralized
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.core.rng import make_rng
from manyeyes.metrics.heterogeneity import rare_classes_note
from manyeyes.models.flat import FlatModel
from manyeyes.training.setup import TrainingSetup


def advice(setup: TrainingSetup) -> list[str]:
    """Return what a user should know of a run before its first round."""
    return list(filter(None, _sentences(setup)))


def _sentences(setup: TrainingSetup) -> Iterator[str]:
    algorithm, population = setup.algorithm, setup.population
    yield batch_size_advice(algorithm, population)
    yield sharing_advice(algorithm, setup.model)
    if setup.evaluator is not None:
        yield strangers_advice(algorithm, population, setup.evaluator.population)
    if algorithm.privacy is not None:
        yield noise_advice(algorithm, population, num_noised_values(setup), setup.config.rounds)
    if not setup.config.withholds_statistics(algorithm):
        yield rare_classes_note(population.classes, population.class_counts)
    if setup.evaluator is None:
        fix = "give the examples a column `split` with train and test, or pass test=... to train"
        yield f"The model is not evaluated, because the data have no split `{setup.config.eval_split}`: {fix}."


def sharing_advice(algorithm: Algorithm, model: FlatModel) -> str:
    """Return what to set if all layers that train are personal, which only `local_only` is meant to be; else nothing."""
    personal = algorithm.personal_layers
    if personal is None or personal == local_only().personal_layers:
        return ""
    if model.shapes.keys() - personal.parameter_names(model.structure):
        return ""
    fix = "set model.trainable to more layers than the personal ones (such as head:2), or algorithm=local_only"
    return f"All layers that train are personal, so clients share nothing and each trains alone: {fix}."


def strangers_advice(algorithm: Algorithm, train: Population, evaluated: Population) -> str:
    """Return how to split the data if personal models are scored on users who have none of their own; else nothing."""
    if algorithm.personal_layers is None and algorithm.personal_model is None:
        return ""
    if np.isin(evaluated.user_ids, train.user_ids).any():
        return ""
    problem = "No evaluated user takes part in training, so personal models are scored on new users"
    return f"{problem}: prepare the data with --split per_user (data.split=per_user of synthetic images)."


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


def num_noised_values(setup: TrainingSetup) -> int:
    """Return how many values of an update are shared, and get noise."""
    layers = setup.algorithm.personal_layers
    personal = set() if layers is None else layers.parameter_names(setup.model.structure)
    return int((~setup.model.mask(personal.__contains__)).sum())


def noise_advice(algorithm: Algorithm, population: Population, num_values: int, rounds: int) -> str:
    """Return how strong the noise is, if over all rounds it outweighs whatever the clipped updates can be; else nothing.

    Noise of independent rounds adds up to sqrt(rounds) times that of one, and updates that all have the same direction
    to `rounds` times one. A mechanism without `mean_noise_stddev` says nothing.
    """
    stddev = getattr(algorithm.privacy, "mean_noise_stddev", None)
    if stddev is None or not rounds:
        return ""
    cohort_size = getattr(algorithm.sampler, "cohort_size", len(population.user_ids))
    excess = stddev(cohort_size) * math.sqrt(num_values) / math.sqrt(rounds)
    if excess <= 1:
        return ""
    times = f"{excess:,.0f} times " if excess >= 2 else ""
    return (
        f"The noise is {times}larger than the longest update can be over {rounds:,} rounds; "
        "the model will not learn: sample more clients per round (which may need more users), train fewer weights "
        "(a smaller model, or model.trainable), or accept a larger epsilon."
    )
