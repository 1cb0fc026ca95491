"""Tables: what a federated split lists, from rows of a CSV to a listing of the images that are really there."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels
from manyeyes.data.manifest import Files, Manifest, count_and_name

Strings = NDArray[np.str_]
BLOCK = 1 << 26  # bytes; no row may be longer, and a landmark's row has all its images


@dataclass(frozen=True, eq=False)
class Entries:
    """What a split lists, one entry for each example."""

    image_ids: Strings
    users: Strings  # "" in the test set, which belongs to nobody
    splits: Strings  # train or test
    labels: SingleLabels
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    clientless: int = 0  # training examples that no client of this split holds

    def take(self, chosen: Ints) -> Entries:
        return replace(
            self,
            image_ids=self.image_ids[chosen],
            users=self.users[chosen],
            splits=self.splits[chosen],
            labels=self.labels.take(chosen),
            columns={name: column[chosen] for name, column in self.columns.items()},
        )


def find_file(folder: Path, *names: str) -> Path | None:
    """A file of one of these names in the folder, or in one right below it, where archives put theirs."""
    for name in names:
        for path in (folder / name, *sorted(folder.glob(f"*/{name}"))):
            if path.is_file():
                return path
    return None


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """The named columns of a CSV as text, whatever is in them."""
    header = column_names(path)
    if missing := [name for name in columns if name not in header]:
        raise ValueError(f"Table {path} has no column {missing[0]!r}, but {', '.join(header)}; give the right file.")
    try:
        return pa.csv.read_csv(
            path,
            pa.csv.ReadOptions(block_size=BLOCK),
            pa.csv.ParseOptions(newlines_in_values=True),  # titles of photographs have them
            pa.csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.string())),
        )
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"Table {path} cannot be read ({reason}); fetch it anew.") from error


def column_names(path: Path) -> list[str]:
    """What the columns of a CSV are called."""
    if not path.is_file():
        raise ValueError(f"Table {path} does not exist; check the path.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"Table {path} cannot be read ({error}); fetch it anew.") from error


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A CSV of these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def as_strings(column: pa.ChunkedArray) -> Strings:
    return np.array(column.to_pylist(), dtype=np.str_)


def read_released(train: Path, test: Path, user: str = "user_id") -> Entries:
    """A split as Hsu et al. release it: CSVs with user_id, image_id, class and for iNaturalist the original label."""
    named = "label" in column_names(train)
    of_class = ("image_id", "class", "label") if named else ("image_id", "class")
    tables = [read_table(train, (user, *of_class)), read_table(test, of_class)]
    count, rest = (len(table) for table in tables)
    columns = {name: np.concatenate([as_strings(table[name]) for table in tables]) for name in of_class}
    return Entries(
        columns["image_id"],
        np.concatenate([as_strings(tables[0][user]), np.full(rest, "")]),
        np.repeat(["train", "test"], [count, rest]),
        _labels(columns["class"], columns["label"] if named else columns["class"], train),
    )


def only_clients(entries: Entries, nobody: Sequence[str]) -> Entries:
    """Without the training examples whose user is one of those that stand for nobody."""
    lost = (entries.splits == "train") & np.isin(entries.users, nobody)
    return replace(entries.take(np.flatnonzero(~lost)), clientless=int(lost.sum()))


def sample_per_class(classes: Ints, most: int, g: np.random.Generator, least: int = 0) -> Ints:
    """At most so many examples of each class, at random, and none of a class with fewer than `least`; in order."""
    order = g.permutation(len(classes))
    order = order[np.argsort(classes[order], kind="stable")]
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    rank = np.arange(len(classes)) - np.repeat(starts, counts)
    return np.sort(order[(rank < most) & (np.repeat(counts, counts) >= least)])


def make_manifest(
    dataset: str, raw: Path, entries: Entries, paths: Sequence[str], notes: Mapping[str, Any]
) -> Manifest:
    """The entries whose file is there, each image once; how many that is, and what was left out, is in the notes.

    `paths` are below `raw`, and empty for an image that was not found.
    """
    if not (entries.splits == "train").any():
        raise ValueError(f"No training example of {dataset} {notes['split']} has a client; choose another split.")
    first = np.zeros(len(entries.users), bool)
    first[np.unique(entries.image_ids, return_index=True)[1]] = True
    there = np.array([path != "" for path in paths], bool)
    listed = {split: int((first & (entries.splits == split)).sum()) for split in ("train", "test")}
    found = {split: int((first & there & (entries.splits == split)).sum()) for split in listed}
    if not found["train"]:
        raise ValueError(
            f"Folder {raw} holds none of the {listed['train']:,} training images of {dataset} {notes['split']}; "
            "extract its images there."
        )
    left_out = {
        "images without a file, left out": entries.image_ids[first & ~there],
        "image ids listed again, left out": entries.image_ids[~first],
    }
    kept = np.flatnonzero(first & there)
    shown = entries.take(kept)
    users = {"listed": len(np.unique(entries.users[entries.splits == "train"]))}
    users["found"] = len(np.unique(shown.users[shown.splits == "train"]))
    coverage = {split: {"listed": listed[split], "found": found[split]} for split in listed} | {"users": users}
    said = {what: count_and_name(some) for what, some in left_out.items() if len(some)}
    if entries.clientless:
        said["training examples of no client, left out"] = {"count": entries.clientless, "first": []}
    return Manifest(
        dataset,
        Files(raw, [paths[i] for i in kept.tolist()]),
        np.arange(len(kept)),
        shown.users,
        shown.splits,
        {"class": shown.labels},
        {"image_id": shown.image_ids, **shown.columns},
        {**notes, "coverage": coverage, **said},
    )


def _labels(classes: Strings, called: Strings, path: Path) -> SingleLabels:
    """Classes in the order of their numbers, each with its name."""
    for number in np.unique(classes).tolist():
        if not number.isdecimal():
            raise ValueError(f"Table {path} or its test set has the class {number!r}; a class is a number from 0 on.")
    _, first, ids = np.unique(classes.astype(np.int64), return_index=True, return_inverse=True)
    of_class = called[first]
    if (of_class[ids] != called).any() or len(np.unique(of_class)) < len(of_class):
        raise ValueError(f"Table {path} and its test set do not agree on which class has which label; fetch them anew.")
    return SingleLabels(ids, tuple(of_class.tolist()))
