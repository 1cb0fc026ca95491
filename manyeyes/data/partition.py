"""Partitions: which user holds each example of a dataset that came without users, and who is tested on what."""

import csv
import io
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.core.rng import derive_key, make_rng

MOST_DRAWS = 10_000


def dirichlet(labels: ArrayLike, users: int, alpha: float, seed: int, per_user: int | None = None) -> Ints:
    """The user of each example, or -1: clients of equal size with q_k ~ Dir(alpha p) (Hsu et al. 2020, appendix B.1).

    p is the share of each class in `labels`. Examples are drawn without replacement; when classes run out, a client
    draws from the others as Eq. 5 says. With alpha = 0 a client has one class until that is exhausted.
    """
    classes, ids = np.unique(np.asarray(labels), return_inverse=True)
    sizes = _sizes(len(ids), users, per_user)
    if not 0 <= alpha < np.inf:
        raise ValueError(f"alpha is {alpha}: give a number from 0 (one class a client) upwards")
    g = make_rng(seed, "dirichlet")
    left_C = np.bincount(ids, minlength=len(classes))
    # Below this Dir(alpha p) is at its limit: one class, and when that is exhausted another.
    concentration_C = max(alpha, 1e-6) * left_C / len(ids)
    taken_UC = np.zeros((users, len(classes)), np.int64)
    for user, size in enumerate(sizes):
        log_q_C = _log_gamma(concentration_C, g)
        while missing := size - taken_UC[user].sum():
            # Eq. 5, and its sequential drawing: what a class has no more of is drawn again from the others.
            log_open_C = np.where(left_C > 0, log_q_C, -np.inf)
            q_C = np.exp(log_open_C - log_open_C.max())
            drawn_C = np.minimum(g.multinomial(missing, q_C / q_C.sum()), left_C)
            taken_UC[user] += drawn_C
            left_C -= drawn_C
    owners = np.full(len(ids), -1)
    for c in range(len(classes)):
        held = np.repeat(np.arange(users), taken_UC[:, c])
        owners[g.permutation(np.flatnonzero(ids == c))[: len(held)]] = held
    return owners


def classes_per_client(labels: ArrayLike, users: int, n: int, seed: int) -> Ints:
    """The user of each example: n classes a client, each class cut equally among its holders (FedPer, section 4)."""
    classes, ids = np.unique(np.asarray(labels), return_inverse=True)
    _sizes(len(ids), users, None)
    if not 1 <= n <= len(classes):
        raise ValueError(f"there are {n} classes a client: give a number from 1 to the {len(classes)} that there are")
    g = make_rng(seed, "classes per client")
    everything_UC = np.tile(np.arange(len(classes)), (users, 1))
    for _ in range(MOST_DRAWS):
        drawn_Un = g.permuted(everything_UC, axis=1)[:, :n]
        if len(np.unique(drawn_Un)) == len(classes):
            break
    else:
        raise ValueError(
            f"{users} clients of {n} classes left some of the {len(classes)} classes to nobody in {MOST_DRAWS} draws: "
            "give more clients or more classes a client"
        )
    owners = np.empty(len(ids), np.int64)
    for c in range(len(classes)):
        holders = np.flatnonzero((drawn_Un == c).any(axis=1))
        parts = np.array_split(g.permutation(np.flatnonzero(ids == c)), len(holders))
        for user, part in zip(g.permutation(holders), parts, strict=True):  # none has the odd example of every class
            owners[part] = user
    return owners


def iid(count: int, users: int, seed: int) -> Ints:
    """The user of each of `count` examples, dealt out at random in equal parts."""
    return make_rng(seed, "iid").permutation(np.repeat(np.arange(users), _sizes(count, users, None)))


def released(path: Path, labels: ArrayLike, dataset: str, alpha: float) -> Ints:
    """The user of each official train image, or -1, in the splits that Hsu et al. released.

    `path` is their archive, its folder, one of its CSVs (user_id, image_id, class), or an .npz with a key like
    cifar10_alpha_0.10.
    """
    labels = np.asarray(labels)
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there are no released splits at {path}: give the .zip, folder, .csv or .npz that holds them")
    if path.suffix in (".npz", ".zip") and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is truncated or no archive: download it again")
    if path.suffix == ".npz":
        return _released_array(path, len(labels), f"{dataset}_alpha_{alpha:.2f}")
    owners = np.full(len(labels), -1)
    name, lines = _released_lines(path, f"federated_train_alpha_{alpha:.2f}.csv")
    table = csv.DictReader(lines)
    if not {"user_id", "image_id", "class"} <= set(table.fieldnames or ()):
        raise ValueError(f"{name} has the columns {table.fieldnames}: it should have user_id, image_id and class")
    for row in table:
        try:
            user, image, label = int(row["user_id"]), int(row["image_id"]), int(row["class"])
        except (TypeError, ValueError):
            raise ValueError(f"{name}, line {table.line_num}: user_id, image_id and class are not numbers") from None
        if not 0 <= image < len(labels) or user < 0:
            raise ValueError(f"{name}, line {table.line_num}: there is no image {image} among {len(labels)}")
        if owners[image] >= 0:
            raise ValueError(f"{name}, line {table.line_num}: image {image} was already given to user {owners[image]}")
        if labels[image] != label:
            raise ValueError(
                f"{name}, line {table.line_num}: image {image} has class {labels[image]}, not {label}; "
                "the splits before v1.1 have wrong ids: get v1.1"
            )
        owners[image] = user
    return owners


def within_users(users: ArrayLike, seed: int, test: float = 0.17) -> NDArray[np.str_]:
    """train or test for each example, so that each user has both; who has a single example trains on it.

    A user's split depends on the seed, its name and its number of examples, and on no other user.
    """
    _check_shares(test=test)
    names, index, counts = np.unique(np.asarray(users), return_inverse=True, return_counts=True)
    split = np.full(len(index), "train", "U5")
    for name, mine in zip(names, np.split(np.argsort(index, kind="stable"), np.cumsum(counts)[:-1]), strict=True):
        tested = min(max(round(test * len(mine)), 1), len(mine) - 1) if test else 0
        split[make_rng(seed, f"within/{name}").permutation(mine)[:tested]] = "test"
    return split


def by_users(users: ArrayLike, seed: int, val: float = 0.1, test: float = 0.1) -> NDArray[np.str_]:
    """train, val or test for each example: each user is wholly in one, and no part with a share is empty."""
    _check_shares(val=val, test=test)
    names, index = np.unique(np.asarray(users), return_inverse=True)
    sizes = {part: max(round(share * len(names)), 1) if share else 0 for part, share in (("val", val), ("test", test))}
    if sum(sizes.values()) >= len(names):
        raise ValueError(f"{len(names)} users are too few for train, val and test users: split within users instead")
    order = sorted(range(len(names)), key=lambda i: derive_key(seed, f"by users/{names[i]}"))
    of_user = np.full(len(names), "train", "U5")
    of_user[order[: sizes["test"]]] = "test"
    of_user[order[sizes["test"] : sizes["test"] + sizes["val"]]] = "val"
    return of_user[index]


def _log_gamma(shape: NDArray[np.float64], g: np.random.Generator) -> NDArray[np.float64]:
    """Logarithms of gamma variables; normalised they are Dirichlet, and small shapes do not underflow."""
    return np.asarray(np.log(g.standard_gamma(shape + 1)) - g.standard_exponential(len(shape)) / shape)


def _sizes(count: int, users: int, per_user: int | None) -> Ints:
    """How many of `count` examples each user gets: equally many, or up to one more where that leaves some over."""
    if not 1 <= users <= count:
        raise ValueError(f"{count} examples cannot be shared out among {users} users: give from 1 to {count} users")
    if per_user is None:
        return count // users + (np.arange(users) < count % users)
    if not 1 <= per_user <= count // users:
        raise ValueError(f"{users} users cannot have {per_user} each of {count} examples: give 1 to {count // users}")
    return np.full(users, per_user)


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"the share of {name} is {share}: give a number from 0 to below 1")


def _released_array(path: Path, count: int, key: str) -> Ints:
    with np.load(path) as arrays:
        if key not in arrays:
            raise ValueError(f"{path.name} has no {key}: it has {', '.join(sorted(arrays))}")
        owners: NDArray[Any] = arrays[key]
    if owners.shape != (count,):
        raise ValueError(f"{key} in {path.name} is for {owners.shape} images, and there are {count}")
    return owners.astype(np.int64)


def _released_lines(path: Path, name: str) -> tuple[str, Iterable[str]]:
    """The name and lines of a CSV: the one at `path`, or the one called `name` in the archive or folder there."""
    if path.suffix == ".csv":
        return path.name, path.read_text().splitlines()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if Path(member).name == name:
                    return name, io.StringIO(archive.read(member).decode())
    elif found := sorted(path.rglob(name)):
        return name, found[0].read_text().splitlines()
    raise ValueError(f"{path} has no {name}: give an alpha that was released, or the CSV itself")


def repartition(population: Population, users: int, classes: int, seed: int) -> Population:
    """All examples to `users` clients of so many classes each, 83/17 to train and test on within each, as in FedPer.

    The seed decides all of it, whoever held the examples before.
    """
    if not isinstance(population.labels, SingleLabels):
        raise ValueError("clients of few classes need one class an example: leave data.users at 0")
    ids = population.columns.get("image_id")
    order = np.argsort(population.image_indices if ids is None else np.asarray(ids), kind="stable")
    owners = classes_per_client(population.labels.ids[order], users, classes, seed)
    split = within_users(owners, seed)
    together = np.argsort(owners, kind="stable")
    examples = order[together]
    width = len(str(users - 1))
    columns = {
        name: np.asarray(column)[examples] if isinstance(column, np.ndarray) else column.take(examples)
        for name, column in population.columns.items()
    }
    return replace(
        population,
        labels=population.labels.take(examples),
        offsets=np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=users))]).astype(np.int64),
        user_ids=np.arange(users),
        image_indices=population.image_indices[examples],
        columns=columns | {"split": split[together]},
        user_names=np.array([f"{user:0{width}d}" for user in range(users)]),
    )
