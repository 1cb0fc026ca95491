"""How much a client counts in the update of a round, and how much an example counts in the loss."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path

import numpy as np

from manyeyes.components.client_optimizers import SGD
from manyeyes.core.algorithm import Algorithm, Doubles
from manyeyes.core.population import Floats, Ints, Population
from manyeyes.core.registry import component, format_value, option

POPULATION, UNIFORM = "population", "uniform"
TARGET_CHOICES = (
    "population, uniform, a split of the data such as val, a text file with one number per class, or numbers"
)
TARGET_HELP = f"p(y): {TARGET_CHOICES}"
FIX = f"set it to {TARGET_CHOICES}"
MAX_FILE_BYTES = 2**20  # of a file with p(y)


@component("client_weighting", "examples")
class WeightByExamples:
    """n_k / n, as FedAvg (McMahan et al. 2017)."""

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> Doubles:
        return num_examples_K.astype(np.float64)

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        return float(num_examples_K.sum())


@component("client_weighting", "uniform")
class WeightUniformly:
    """1 / K."""

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> Doubles:
        return np.ones(len(num_examples_K))

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        return float(len(num_examples_K))


@component("client_weighting", "fednova")
class FedNovaWeighting:
    """FedNova's normalized averaging: n_k / n, with each update divided by its effective steps.

    With p_k = n_k / n and a_k the weights of a client's gradients in its update, the update of the round is
    tau_eff * sum_k p_k update_k / ||a_k||_1, where tau_eff = sum_k p_k ||a_k||_1 (Wang et al. 2020, section 4).
    """

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        optimizer, correction = algorithm.client_optimizer, algorithm.correction
        if not isinstance(optimizer, SGD):
            return "client_weighting=fednova knows the effective steps of SGD only: set client_optimizer=sgd"
        if optimizer.persist_state and optimizer.momentum:
            return "client_weighting=fednova assumes momentum that starts at 0: set persist_state=false"
        if correction is not None and correction.proximal_strength * optimizer.lr >= 1:
            return "client_weighting=fednova needs proximal strength * lr below 1: lower one of them"
        return None

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> Doubles:
        return num_examples_K / normalization_factors(algorithm, num_steps_K, round)

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float:
        factors_K = normalization_factors(algorithm, num_steps_K, round)
        return float(num_examples_K.sum() ** 2 / (num_examples_K * factors_K).sum())


def normalization_factors(algorithm: Algorithm, num_steps_K: Ints, round: int) -> Doubles:
    """Return ||a_k||_1: how far SGD moves, in learning rates, if every gradient is 1."""
    optimizer, correction = algorithm.client_optimizer, algorithm.correction
    assert isinstance(optimizer, SGD), "FedNova is refused with other optimizers before round 1"
    damping = 0.0 if correction is None else correction.proximal_strength * optimizer.learning_rate(round)
    distance, velocity, distances = 0.0, 0.0, [0.0]
    for _ in range(int(num_steps_K.max())):
        velocity = optimizer.momentum * velocity + 1 - damping * distance
        distance += velocity
        distances.append(distance)
    return np.array(distances)[num_steps_K]


@component("example_weighting", "importance")
class ImportanceReweighting:
    """FedIR: p(y) / q_k(y), normalized over the batch by the loss (Hsu et al. 2020, Eq. 3 and 4).

    The target p(y) is the distribution that the model should be good on: that of all clients' training examples
    (`population`), `uniform`, that of another split of the data, such as `val`, or a number for each class, in the order
    of the classes, also in a text file. Numbers of a file become part of the component, so that a run records them.
    """

    target: str | tuple[float, ...] = option(POPULATION, TARGET_HELP)

    def __post_init__(self) -> None:
        target = self.target
        if isinstance(target, str) and is_file_name(target):
            target = read_distribution(Path(target))
        if not isinstance(target, str):
            if not isinstance(target, Sequence) or not all(isinstance(value, Real) for value in target):
                raise ValueError(f"example_weighting.target is {format_value(target)}: set it to {TARGET_CHOICES}")
            object.__setattr__(self, "target", tuple(map(float, target)))

    @property
    def split(self) -> str | None:
        """The split whose labels are the target, until `resolve_target` has counted them."""
        return self.target if isinstance(self.target, str) and self.target not in (POPULATION, UNIFORM) else None

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if population.labels.multi:
            return (
                "example_weighting=importance needs one class per image, and this data has several labels per image: "
                "set example_weighting=none"
            )
        target, num_classes = self.target, len(population.classes)
        if isinstance(target, str):
            return None
        if len(target) != num_classes:
            problem = f"example_weighting.target has {len(target)} values for {num_classes} classes"
            return f"{problem}: give one value per class"
        if not (min(target) >= 0 and abs(sum(target) - 1) <= 1e-6):
            return f"example_weighting.target must be at least 0 everywhere and sum to 1; it sums to {sum(target):.6g}"
        return None

    def target_distribution(self, population_counts: Ints) -> Floats:
        """Return p(y) [C]."""
        if self.split is not None:
            raise ValueError(f"example_weighting.target={self.split} is a split: pass the data to resolve_target first")
        if self.target == UNIFORM:
            return np.full(len(population_counts), 1 / len(population_counts))
        return population_counts / population_counts.sum() if self.target == POPULATION else np.asarray(self.target)

    def class_weights(self, client_counts: Ints, population_counts: Ints) -> Floats:
        """Return p(y) / q_k(y) for the classes that the client holds, and 0 for the others."""
        target_C = self.target_distribution(population_counts)
        client_C = client_counts / client_counts.sum()
        return np.divide(target_C, client_C, out=np.zeros(len(client_C)), where=client_C > 0).astype(np.float32)


def resolve_target(algorithm: Algorithm, population: Population, eval_split: str) -> Algorithm:
    """Return the algorithm with the class distribution of a split of the data in place of the split's name."""
    weighting = algorithm.example_weighting
    if not isinstance(weighting, ImportanceReweighting) or weighting.split is None:
        return algorithm
    splits = np.unique(np.asarray(population.columns["split"])).tolist() if "split" in population.columns else []
    if weighting.split not in splits:
        known = f", which has {', '.join(splits)}" if splits else ", which has none"
        raise ValueError(f"example_weighting.target is {weighting.split!r} and no split of the data{known}: {FIX}")
    if weighting.split == eval_split:
        problem = f"example_weighting.target is {eval_split!r}, the split that is evaluated"
        raise ValueError(f"{problem}: set it to another split, such as val, or to uniform")
    counts_C = population.split(weighting.split).class_counts
    target = tuple((counts_C / counts_C.sum()).tolist())
    return replace(algorithm, example_weighting=replace(weighting, target=target))


def is_file_name(target: str) -> bool:
    return "." in target or "/" in target or "\\" in target


def read_distribution(path: Path) -> tuple[float, ...]:
    """Return the numbers of a text file, which spaces, commas or lines separate."""
    setting = f"example_weighting.target is the file {path}"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        texts = content.decode().replace(",", " ").split()
    except OSError as error:
        raise ValueError(f"{setting}, which cannot be read ({error.strerror}): {FIX}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{setting}, which is not a text file: write one number per class into it") from error
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(
            f"{setting}, which is larger than {MAX_FILE_BYTES >> 20} MiB: write one number per class into it"
        )
    try:
        return tuple(map(float, texts))
    except ValueError as error:
        raise ValueError(
            f"{setting}, and not all of it are numbers ({error}): write one number per class into it"
        ) from error
