"""The splits of a run: what is trained on, what is evaluated, and what selects the best model."""

from __future__ import annotations

from dataclasses import dataclass

from manyeyes.components.samplers import Centralized
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.training.config import RunConfig


@dataclass(frozen=True, eq=False)
class Splits:
    """The populations of a run."""

    train: Population  # one user for centralized training
    test: Population | None
    validation: Population | None  # that selects the best model
    by_users: dict[str, Population | None]  # as users hold them, by name


def make_splits(population: Population, test: Population | None, algorithm: Algorithm, config: RunConfig) -> Splits:
    """Split a population: the train split trains and `eval_split` is evaluated, unless `test` is given."""
    train = population
    if test is None and "split" in population.columns:
        train, test = population.split("train"), population.split(config.eval_split)
    by_users = {"train": train, config.eval_split: test}
    if isinstance(algorithm.sampler, Centralized):
        train = train.pooled()
    return Splits(train, test, _validation_split(population, algorithm, config), by_users)


def _validation_split(population: Population, algorithm: Algorithm, config: RunConfig) -> Population | None:
    name = config.select_best_on
    if not name:
        return None
    for slot in ("personal_layers", "personal_model", "adaptation"):
        if getattr(algorithm, slot) is not None:
            raise ValueError(
                f"select_best_on={name} selects among shared models and {slot} gives clients their own: leave "
                "select_best_on empty."
            )
    if "split" not in population.columns or name == config.eval_split:
        raise ValueError(f"select_best_on is {name!r}: set it to a split of the data other than the evaluated one.")
    return population.split(name)
