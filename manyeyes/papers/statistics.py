"""The numbers that the papers print of their data, counted in a population."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from manyeyes.core.population import Population
from manyeyes.metrics import mean_emd

RARE = 0.001  # of the users: FLAIR's section 4.2
FULL = 10  # test images of a landmark (Hsu et al. 2020, section 4.2)


def half_holders(population: Population) -> float:
    """The least share of the users who together hold half of the images."""
    held = np.cumsum(np.sort(population.num_examples)[::-1])
    return float((np.searchsorted(held, len(population) / 2) + 1) / len(population.num_examples))


def holders(population: Population) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How many users have each label [C]."""
    classes = len(population.classes)
    example, label = population.labels.nonzero()
    pairs = np.unique(population.owners(example) * classes + label)
    return np.bincount(pairs % classes, minlength=classes)


COUNTS: dict[str, Callable[[Population], float]] = {
    "users": lambda people: len(people.user_ids),
    "images": len,
    "classes": lambda people: len(people.classes),
    "train users": lambda people: len(people.split("train").user_ids),
    "train images": lambda people: len(people.split("train")),
    "val images": lambda people: len(people.split("val")),
    "test images": lambda people: len(people.split("test")),
    "fewest train images of a user": lambda people: int(people.split("train").num_examples.min()),
    "most train images of a user": lambda people: int(people.split("train").num_examples.max()),
    "users with half of the images": half_holders,
    "classes of fewer than 0.1 % of users": lambda people: int((holders(people) < RARE * len(people.user_ids)).sum()),
    "classes with 10 test images": lambda people: int((people.split("test").class_counts == FULL).sum()),
    "mean EMD": lambda people: mean_emd(people.split("train").histograms()),
}


@dataclass(frozen=True)
class Count:
    """One of `COUNTS`, of the row's dataset or (where it has several) of the one whose path ends so."""

    name: str
    store: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.store})" if self.store else self.name

    def compute(self, population: Population) -> float:
        return float(COUNTS[self.name](population))


@dataclass(frozen=True)
class LabelImages:
    """How many images have a label."""

    label: str
    store: str = ""

    def __str__(self) -> str:
        return f"images with {self.label}"

    def compute(self, population: Population) -> float:
        return float(population.class_counts[population.classes.index(self.label)])


@dataclass(frozen=True)
class LabelUsers:
    """The share of users who have a label."""

    label: str
    store: str = ""

    def __str__(self) -> str:
        return f"users with {self.label}"

    def compute(self, population: Population) -> float:
        return float(holders(population)[population.classes.index(self.label)] / len(population.user_ids))


Statistic = Count | LabelImages | LabelUsers
