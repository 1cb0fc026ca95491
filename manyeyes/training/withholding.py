"""What a private run records of its training users: nothing but what follows from the noised sums of their updates.

The guarantee covers the model. The losses, norms, counts and times of a round are exact numbers of the clients that
took part, so they never leave the training loop, unless `unprotected_statistics` is set.
"""

from collections.abc import Mapping

import numpy as np

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.metrics import PERSONALIZED
from manyeyes.metrics.accuracy import USER_RESULTS
from manyeyes.training.config import RunConfig
from manyeyes.training.run_files import Event

TRAIN_SPLIT = "train"
PUBLIC_FIELDS = ("round", "epsilon", "clipping_norm")  # of a round; the mechanism computes the norm from a noised count
USER_MEANS = ("user_mean", "user_weighted_mean")  # over all evaluated users; the other results per user are withheld
FIX = "or set unprotected_statistics=true"


def check_recording(algorithm: Algorithm, config: RunConfig) -> None:
    """Refuse settings with which a private run would show exact numbers of its training users."""
    if not config.withholds_statistics(algorithm):
        return
    for setting in ("eval_split", "select_best_on"):
        if getattr(config, setting) == TRAIN_SPLIT:
            problem = f"{setting}={TRAIN_SPLIT} scores the training images, which privacy protects"
            raise ValueError(f"{problem}: set {setting} to another split, {FIX}.")
    if config.max_local_batches:
        problem = (
            f"max_local_batches={config.max_local_batches} ends the run at a round that depends on what users hold"
        )
        raise ValueError(f"{problem}, which privacy protects: limit rounds instead, {FIX}.")


def public_event(event: Event) -> Event:
    """Return the fields of a round that are public."""
    return {name: value for name, value in event.items() if name in PUBLIC_FIELDS}


def public_results(results: Mapping[str, float], evaluated: Population, trained: Population) -> dict[str, float]:
    """Return the results of an evaluation; if training users are evaluated, of the results per user only the means."""
    if not are_training_users(evaluated, trained):
        return dict(results)
    withheld = USER_RESULTS.keys() - set(USER_MEANS)
    return {name: value for name, value in results.items() if name.removeprefix(PERSONALIZED) not in withheld}


def are_training_users(evaluated: Population, trained: Population) -> bool:
    """Return whether any evaluated user is trained on."""
    return bool(np.isin(evaluated.user_ids, trained.user_ids).any())


def public_splits(splits: Mapping[str, Population | None], trained: Population) -> dict[str, Population | None]:
    """Return the splits that have no training user."""
    return {n: split for n, split in splits.items() if split is not None and not are_training_users(split, trained)}
