"""The numbers that the papers print about their datasets, counted in a population."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from manyeyes.core.population import Ints, Population
from manyeyes.metrics import mean_emd
from manyeyes.metrics.heterogeneity import split_stats
from manyeyes.report.population import users_with_half

RARE_FRACTION = 0.001  # of the users: FLAIR's section 4.2
RARE_CLASSES = "classes of fewer than 0.1 % of users"
FULL_TEST_IMAGES = 10  # of a landmark (Hsu et al. 2020, section 4.2)


def users_with_class(population: Population) -> Ints:
    """Return how many users have each class [C]."""
    return split_stats("", population).holders_C


COUNTS: dict[str, Callable[[Population], float]] = {
    "users": lambda population: len(population.user_ids),
    "images": len,
    "classes": lambda population: len(population.classes),
    "train users": lambda population: len(population.split("train").user_ids),
    "train images": lambda population: len(population.split("train")),
    "val images": lambda population: len(population.split("val")),
    "test images": lambda population: len(population.split("test")),
    "min train images per user": lambda population: population.split("train").num_examples.min(),
    "max train images per user": lambda population: population.split("train").num_examples.max(),
    "users with half of the images": lambda population: users_with_half(population.num_examples),
    RARE_CLASSES: lambda p: (users_with_class(p) < RARE_FRACTION * len(p.user_ids)).sum(),
    "classes with 10 test images": lambda population: (population.split("test").class_counts == FULL_TEST_IMAGES).sum(),
    "median classes per user": lambda population: np.median((population.split("train").histograms() > 0).sum(axis=1)),
    "mean EMD": lambda population: mean_emd(population.split("train").histograms()),
}
LABEL_COUNTS: dict[str, Callable[[Population, int], float]] = {
    "images with": lambda population, label: population.class_counts[label],
    "users with": lambda population, label: users_with_class(population)[label] / len(population.user_ids),
}


@dataclass(frozen=True)
class Statistic:
    """One of `COUNTS`, or with a label one of `LABEL_COUNTS`, of the dataset that a row describes."""

    name: str
    label: str = ""
    path_suffix: str = ""  # of the dataset, if the row describes several

    def __str__(self) -> str:
        return f"{self.name} {self.label or (self.path_suffix and f'({self.path_suffix})')}".rstrip()

    def compute(self, population: Population) -> float | None:
        """Count in a population; None if it has too few users for a share of them."""
        if self.name == RARE_CLASSES and len(population.user_ids) * RARE_FRACTION < 1:
            return None
        if self.label:
            return float(LABEL_COUNTS[self.name](population, population.classes.index(self.label)))
        return float(COUNTS[self.name](population))
