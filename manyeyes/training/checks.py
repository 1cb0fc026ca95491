"""Checks before round 1: combinations of data, model and algorithm that cannot train are refused."""

from __future__ import annotations

import numpy as np

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.rng import make_rng
from manyeyes.data.preprocess import Preprocess
from manyeyes.models.flat import FlatModel
from manyeyes.models.traits import probe
from manyeyes.training.splits import Splits


def check_algorithm(algorithm: Algorithm, splits: Splits) -> None:
    """Refuse an algorithm that makes no sense on this data."""
    algorithm.validate(splits.train)
    if algorithm.adaptation is None or splits.test is None:
        return
    if not np.isin(splits.train.user_ids, splits.test.user_ids).any():
        raise ValueError(
            "Fine-tuning needs users with training and test examples and no user has both: split the data within users."
        )


def check_model(algorithm: Algorithm, model: FlatModel, splits: Splits, preprocess: Preprocess) -> None:
    """Refuse a model that federated training would change in part only, or whose norms cannot learn."""
    image_size = preprocess.shape(*splits.train.image_shape[:2])
    traits = probe(model, *image_size)
    if traits.mutated_buffer:
        raise ValueError(
            f"The model changes its buffer {traits.mutated_buffer} when it trains, and clients send only the statistics "
            "of norms: remove the layer that has the buffer."
        )
    if not traits.trains_on_one:
        _check_batches(algorithm, splits, image_size)


def check_norm_statistics(algorithm: Algorithm, model: FlatModel) -> None:
    """Refuse BatchNorm statistics that would be noised; those that stay with clients (FedBN) are not."""
    if algorithm.privacy is None:
        return
    layers = algorithm.personal_layers
    personal = set() if layers is None else layers.parameter_names(model.module)
    if not bool(model.mask(personal.__contains__)[model.num_trainable :].all()):
        raise ValueError("Noise would make BatchNorm's statistics useless: set model.norm=group or frozen_batch.")


def _check_batches(algorithm: Algorithm, splits: Splits, image_size: tuple[int, int]) -> None:
    """Refuse batches of one image, which a live BatchNorm cannot learn from."""
    cases = [(algorithm.batching, splits.train.num_examples)]
    if algorithm.adaptation is not None and splits.test is not None:
        adapted = np.isin(splits.train.user_ids, splits.test.user_ids)
        cases.append((algorithm.adaptation.local_algorithm(algorithm).batching, splits.train.num_examples[adapted]))
    for batching, sizes in cases:
        for num_held in np.unique(sizes).tolist():
            if ((batching.batches(num_held, make_rng(0, "draw")) >= 0).sum(1) == 1).any():
                height, width = image_size
                raise ValueError(
                    f"Live BatchNorm cannot learn from a batch of one image of {height} x {width} pixels, and a user "
                    f"with {num_held} images has one: change batching.batch_size, use larger images, or set "
                    "model.norm=group."
                )
