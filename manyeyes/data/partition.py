"""Partitions: the user of each example of a dataset without users, and the split of each example.

A partitioner is called with the class of each example and a seed, and returns the client of each example, from 0 to
the number of clients minus 1; an example with -1 is left out.
"""

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.core.registry import Bounds, build, check_value, component, option
from manyeyes.core.rng import derive_key, make_rng
from manyeyes.data.flower_partitioners import FLOWER_PREFIX as FLOWER_PREFIX
from manyeyes.data.manifest import Manifest, check_choice
from manyeyes.data.tables import csv_rows
from manyeyes.io.parsing import named_if_damaged, parse_yaml

MAX_DRAWS = 10_000  # of classes per client, until every class has a client
FRACTION = Bounds(minimum=0, below=1)
PARTITIONS = ("dirichlet", "classes", "iid")
RELEASED_COLUMNS = ("user_id", "image_id", "class")


def dirichlet(
    labels: ArrayLike, users: int, alpha: float, seed: int, per_user: int | None = None, size_spread: float = 0.0
) -> Ints:
    """Return the user of each example, or -1: users of equal size with q_k ~ Dir(alpha p) (Hsu et al. 2020, B.1).

    p is the frequency of each class in `labels`. Examples are drawn without replacement; when classes are exhausted,
    a user draws from the others as in Eq. 5. With alpha = 0 a user has one class until that is exhausted. With a
    spread, sizes are log-normal, and it is the standard deviation of their logarithm.
    """
    classes, ids = np.unique(np.asarray(labels), return_inverse=True)
    sizes = _sizes(len(ids), users, per_user)
    if size_spread:
        ends = np.round(np.cumsum(lognormal_weights(users, size_spread, seed)) * (len(ids) - users)).astype(np.int64)
        sizes = 1 + np.diff(ends, prepend=0)
    check_value("alpha", alpha, float, Bounds(minimum=0))
    g = make_rng(seed, "dirichlet")
    remaining_C = np.bincount(ids, minlength=len(classes))
    # Below 1e-6 Dir(alpha p) is at its limit: one class, and when that is exhausted another.
    concentration_C = max(alpha, 1e-6) * remaining_C / len(ids)
    counts_UC = np.zeros((users, len(classes)), np.int64)
    for user, size in enumerate(sizes):
        # Logarithms of gamma variables: normalized they are Dirichlet, and small concentrations do not underflow.
        log_q_C = np.log(g.standard_gamma(concentration_C + 1))
        log_q_C -= g.standard_exponential(len(classes)) / concentration_C
        while missing := size - counts_UC[user].sum():
            # Eq. 5, drawn sequentially: what an exhausted class lacks is drawn again from the others.
            log_available_C = np.where(remaining_C > 0, log_q_C, -np.inf)
            q_C = np.exp(log_available_C - log_available_C.max())
            drawn_C = np.minimum(g.multinomial(missing, q_C / q_C.sum()), remaining_C)
            counts_UC[user] += drawn_C
            remaining_C -= drawn_C
    owners = np.full(len(ids), -1)
    for c in range(len(classes)):
        class_owners = np.repeat(np.arange(users), counts_UC[:, c])
        owners[g.permutation(np.flatnonzero(ids == c))[: len(class_owners)]] = class_owners
    return owners


def classes_per_client(labels: ArrayLike, users: int, n: int, seed: int) -> Ints:
    """Return the user of each example: n classes per user, each class split equally among its users (FedPer, 4)."""
    classes, ids = np.unique(np.asarray(labels), return_inverse=True)
    _sizes(len(ids), users, None)
    check_value("classes_per_client", n, int, Bounds(minimum=1, maximum=len(classes)))
    g = make_rng(seed, "classes per client")
    all_classes_UC = np.tile(np.arange(len(classes)), (users, 1))
    for _ in range(MAX_DRAWS):
        classes_Un = g.permuted(all_classes_UC, axis=1)[:, :n]
        if len(np.unique(classes_Un)) == len(classes):
            break
    else:
        reason = f"{users} clients of {n} classes left some of the {len(classes)} classes without a client"
        raise ValueError(f"{reason}: set more clients or more classes_per_client")
    owners = np.empty(len(ids), np.int64)
    for c in range(len(classes)):
        class_users = np.flatnonzero((classes_Un == c).any(axis=1))
        examples = np.array_split(g.permutation(np.flatnonzero(ids == c)), len(class_users))
        for user, user_examples in zip(g.permutation(class_users), examples, strict=True):  # remainders go around
            owners[user_examples] = user
    return owners


def iid(count: int, users: int, seed: int) -> Ints:
    """Return the user of each of `count` examples, assigned at random in equal numbers."""
    return make_rng(seed, "iid").permutation(np.repeat(np.arange(users), _sizes(count, users, None)))


def released(path: Path, labels: ArrayLike, dataset: str, alpha: float) -> Ints:
    """Return the user of each official train image, or -1, in the splits that Hsu et al. released.

    `path` is their archive, its folder, one of its CSVs, or an .npz with keys like cifar10_alpha_0.10.
    """
    labels, path = np.asarray(labels), Path(path)
    if not path.exists():
        raise ValueError(f"No released splits at {path}: give their .zip, folder, .csv or .npz")
    if path.suffix in (".npz", ".zip") and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is truncated or not an archive: download it again")
    if path.suffix != ".npz":
        with named_if_damaged(path, "download it again"):
            name, text = _released_csv(path, f"federated_train_alpha_{alpha:.2f}.csv")
        return _released_table(name, text, labels)
    key = f"{dataset}_alpha_{alpha:.2f}"
    with named_if_damaged(path, "download it again"), np.load(path) as arrays:
        keys = sorted(arrays)
        owners = np.asarray(arrays[key]) if key in keys else None
    if owners is None:
        raise ValueError(f"{path.name} has no {key}: set alpha to one of {', '.join(keys)}")
    if owners.shape != labels.shape or owners.dtype.kind not in "iu":
        raise ValueError(
            f"{key} in {path.name} has {owners.dtype} of shape {owners.shape}, not one user for each of {len(labels)} images"
        )
    return owners.astype(np.int64)


def _released_table(name: str, text: str, labels: NDArray[Any]) -> Ints:
    """Return the user of each image in a CSV; raise ValueError with the line that does not agree with the labels."""
    owners = np.full(len(labels), -1)
    for line, cells in csv_rows(name, io.StringIO(text), RELEASED_COLUMNS):
        try:
            user, image, label = (int(cells[column]) for column in RELEASED_COLUMNS)
        except ValueError:
            raise ValueError(f"{line}: {', '.join(RELEASED_COLUMNS)} must be numbers: download it again") from None
        if not 0 <= image < len(labels) or not 0 <= user < 2**63:
            raise ValueError(f"{line}: no image {image} of user {user} among {len(labels)} images: check the dataset")
        if owners[image] >= 0:
            raise ValueError(f"{line}: image {image} already belongs to user {owners[image]}: download it again")
        if labels[image] != label:
            raise ValueError(f"{line}: image {image} has class {labels[image]}, not {label}: get v1.1 of the splits")
        owners[image] = user
    return owners


def within_users(users: ArrayLike, seed: int, test: float = 0.17) -> NDArray[np.str_]:
    """Return train or test for each example, so that each user has both; a user's only example is in train.

    A user's split depends only on the seed and on the user's name and number of examples.
    """
    check_value("test", test, float, FRACTION)
    names, index, counts = np.unique(np.asarray(users), return_inverse=True, return_counts=True)
    split = np.full(len(index), "train", "U5")
    for name, examples in zip(names, np.split(np.argsort(index, kind="stable"), np.cumsum(counts)[:-1]), strict=True):
        num_test = min(max(round(test * len(examples)), 1), len(examples) - 1) if test else 0
        split[make_rng(seed, f"within/{name}").permutation(examples)[:num_test]] = "test"
    return split


def by_users(users: ArrayLike, seed: int, val: float = 0.1, test: float = 0.1) -> NDArray[np.str_]:
    """Return train, val or test for each example: each user is in one split, and each fraction above 0 has a user."""
    check_value("val", val, float, FRACTION)
    check_value("test", test, float, FRACTION)
    names, index = np.unique(np.asarray(users), return_inverse=True)
    num_val, num_test = (max(round(fraction * len(names)), 1) if fraction else 0 for fraction in (val, test))
    if num_val + num_test >= len(names):
        raise ValueError(
            f"{len(names)} users are too few for train, val and test users: split the images of each user instead (--split per_user)"
        )
    order = sorted(range(len(names)), key=lambda i: derive_key(seed, f"by users/{names[i]}"))
    user_split = np.full(len(names), "train", "U5")
    user_split[order[:num_test]] = "test"
    user_split[order[num_test : num_test + num_val]] = "val"
    return user_split[index]


def repartition(population: Population, partitioner: Callable[[Ints, int], Ints], seed: int) -> Population:
    """Give the examples to new clients as a partitioner says, split 83/17 into train and test, as in FedPer.

    The result depends on the seed and not on the previous owners.
    """
    if not isinstance(population.labels, SingleLabels):
        raise ValueError("partitioner needs one class per example: set partitioner=none, or another data.task")
    ids = population.columns.get("image_id")
    order = np.argsort(population.image_indices if ids is None else np.asarray(ids), kind="stable")
    owners = np.asarray(partitioner(population.labels.ids[order], seed))
    if owners.shape != order.shape or owners.dtype.kind not in "iu" or owners.max() < 0:
        fix = f"return the number of a client, or -1, for each of {len(order)} examples"
        raise ValueError(f"partitioner returned an array of {owners.dtype} of shape {owners.shape}: {fix}")
    order, owners = order[owners >= 0], owners[owners >= 0]
    users = int(owners.max()) + 1
    split = within_users(owners, seed)
    by_owner = np.argsort(owners, kind="stable")
    examples = order[by_owner]
    columns = {
        name: column[examples] if isinstance(column, np.ndarray) else column.take(examples)
        for name, column in population.columns.items()
    }
    return replace(
        population,
        labels=population.labels.take(examples),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=users))]).astype(np.int64),
        user_ids=np.arange(users),
        image_indices=population.image_indices[examples],
        columns=columns | {"split": split[by_owner]},
        user_names=np.array([f"{user:0{len(str(users - 1))}d}" for user in range(users)]),
    )


_classes = classes_per_client  # whose name is also that of an argument


def give_users(
    manifest: Manifest, partition: str, users: int, alpha: float, classes_per_client: int, seed: int
) -> Manifest:
    """Give the training examples of a manifest to users, by the name of a partition; the others have no user."""
    train, labels = np.flatnonzero(manifest.split == "train"), next(iter(manifest.labels.values()))
    if not isinstance(labels, SingleLabels) and partition != "iid":
        raise ValueError(f"partition={partition} needs one class per example: choose iid")
    ids = labels.ids[train] if isinstance(labels, SingleLabels) else np.zeros(len(train), np.int64)
    owners = make_owners(ids, partition, users, alpha, classes_per_client, seed)
    names = np.char.zfill(owners.astype(np.str_), len(str(owners.max())))
    all_users = np.full(len(manifest), "", names.dtype)
    all_users[train] = np.where(owners >= 0, names, "")
    split = manifest.split
    if (split == "train").all():  # without an official test set
        split = np.where(all_users == "", split, within_users(all_users, seed))
    notes = {"partition": partition, "users": users, "seed": seed}
    partitioned = replace(manifest, users=all_users, split=split, notes={**manifest.notes, **notes})
    return partitioned.take(np.flatnonzero((all_users != "") | (split != "train")))


def give_new_users(
    manifest: Manifest,
    *,
    partition: str = "",
    users: int = 100,
    alpha: float = 0.1,
    classes_per_client: int = 4,
    seed: int = 0,
) -> Manifest:
    """Give all examples of a manifest to new users, and split those of each; without a partition, nothing changes."""
    if not partition:
        return manifest
    pooled = replace(manifest, split=np.full(len(manifest), "train"))
    return give_users(pooled, partition, users, alpha, classes_per_client, seed)


def make_owners(
    labels: ArrayLike, partition: str, users: int, alpha: float, classes_per_client: int, seed: int
) -> Ints:
    """Return the user of each example, by the name of a partition: dirichlet, classes or iid.

    `flwr:NAME`, with further options as `key=value`, is a partitioner of flwr-datasets.
    """
    ids = np.asarray(labels)
    if partition.startswith(FLOWER_PREFIX):
        name, *options = partition.split()
        described: dict[str, Any] = {"num_partitions": users, **dict(map(_parse_option, options))}
        owners: Ints = build("partitioner", {"name": name, **described})(ids, seed)
        return owners
    check_choice("partition", partition, PARTITIONS)
    if partition == "dirichlet":
        return dirichlet(ids, users, alpha, seed)
    return iid(len(ids), users, seed) if partition == "iid" else _classes(ids, users, classes_per_client, seed)


def _parse_option(text: str) -> tuple[str, Any]:
    """Return the name and the value of `key=value`."""
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"partition has {text!r}: write the options of a partitioner as key=value")
    return name, parse_yaml(value)


def _sizes(count: int, users: int, per_user: int | None) -> Ints:
    """Return how many of `count` examples each user gets: `per_user`, or as equal as possible."""
    check_value("users", users, int, Bounds(minimum=1, maximum=count))
    if per_user is None:
        return count // users + (np.arange(users) < count % users)
    check_value("per_user", per_user, int, Bounds(minimum=1, maximum=count // users))
    return np.full(users, per_user)


def lognormal_weights(users: int, spread: float, seed: int) -> NDArray[np.float64]:
    """Return the share of each user in all examples, whose logarithm has this standard deviation over users."""
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((rank + 0.5) / users) for rank in range(users)])
    weights = np.exp(spread * make_rng(seed, "log-normal sizes").permutation(quantiles))
    return weights / weights.sum()


def _released_csv(path: Path, name: str) -> tuple[str, str]:
    """Return the name and text of a CSV: the one at `path`, or the one called `name` in the archive or folder."""
    if path.suffix == ".csv":
        return path.name, path.read_text()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            texts = [archive.read(member).decode() for member in archive.namelist() if Path(member).name == name]
    else:
        texts = [match.read_text() for match in sorted(path.rglob(name))]
    if not texts:
        raise ValueError(f"{path} has no {name}: set an alpha that was released, or give the CSV itself")
    return name, texts[0]


@component("partitioner", "dirichlet")
class DirichletPartitioner:
    """Clients of equal or log-normal size, whose class mix is drawn from a Dirichlet distribution (Hsu et al. 2020)."""

    num_clients: int = option(100, "new clients", minimum=1)
    alpha: float = option(0.1, "concentration of the class mix: small is more skewed", minimum=0)
    size_spread: float = option(0.0, "0: equal sizes; else the standard deviation of their logarithm", minimum=0)

    def __call__(self, labels: Ints, seed: int) -> Ints:
        return dirichlet(labels, self.num_clients, self.alpha, seed, size_spread=self.size_spread)


@component("partitioner", "classes")
class ClassPartitioner:
    """Clients of a few classes each; every class is split equally among its clients (Arivazhagan et al. 2019)."""

    num_clients: int = option(10, "new clients", minimum=1)
    classes_per_client: int = option(4, "classes that each client has", minimum=1)

    def __call__(self, labels: Ints, seed: int) -> Ints:
        return classes_per_client(labels, self.num_clients, self.classes_per_client, seed)


@component("partitioner", "iid")
class IIDPartitioner:
    """Clients of equal size, with random examples."""

    num_clients: int = option(100, "new clients", minimum=1)

    def __call__(self, labels: Ints, seed: int) -> Ints:
        return iid(len(labels), self.num_clients, seed)
