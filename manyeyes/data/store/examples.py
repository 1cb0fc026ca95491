"""The examples of a store: from a listing in any order to `examples.parquet`, each user's together, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from manyeyes.core.population import Ints, Labels, MultiLabels, SingleLabels
from manyeyes.data.manifest import Manifest

OWN = ("user", "split", "row")  # columns of the file that no dataset may use for its own


@dataclass(frozen=True, eq=False)
class Arranged:
    """A listing in the order of the store, and which image of the source each row of the store's images is."""

    listing: Manifest
    rows: Ints  # the row of each example
    images: Ints

    def where(self, keep: NDArray[np.bool_]) -> Arranged:
        return replace(self, listing=self.listing.take(np.flatnonzero(keep)), rows=self.rows[keep])

    def fingerprint(self) -> str:
        """Changes when the listing does."""
        digest = hashlib.blake2b(digest_size=16)
        names = np.array([self.listing.source.name(index) for index in self.images.tolist()])
        arrays = {"rows": self.rows, "names": names, "user": self.listing.users, "split": self.listing.split}
        for task, labels in self.listing.labels.items():
            digest.update(repr(labels.classes).encode())
            arrays |= {f"{task} {part}": array for part, array in zip("of", labels.nonzero(), strict=True)}
        for name, array in (arrays | dict(self.listing.columns)).items():
            array = array.astype(str) if array.dtype == object else np.ascontiguousarray(array)
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()


def arrange(listing: Manifest) -> Arranged:
    """Each user's examples together, users by name; images in the order in which the examples need them."""
    users = np.asarray(listing.users)
    names = users.astype(str)
    taken = set(names.tolist())
    for split in np.unique(listing.split[names == ""]).tolist():
        name = split
        while name in taken:
            name += "_"
        names = np.where((names == "") & (listing.split == split), name, names)
    by = users if users.dtype.kind in "iu" else names  # 2 comes before 10
    listing = replace(listing, users=names).take(np.argsort(by, kind="stable"))
    _, first, inverse = np.unique(listing.image, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return Arranged(listing, rank[inverse], listing.image[np.sort(first)])


def write(arranged: Arranged, path: Path) -> None:
    listing = arranged.listing
    columns = {
        "user": pa.array(listing.users.astype(str)),
        "split": pa.array(listing.split.astype(str)),
        "row": pa.array(arranged.rows),
        **{name: _arrow(labels) for name, labels in listing.labels.items()},
        **{name: pa.array(column) for name, column in listing.columns.items()},
    }
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=max(1, len(listing)))


def read(
    path: Path, tasks: Mapping[str, tuple[str, ...]]
) -> tuple[NDArray[np.str_], Ints, Ints, dict[str, NDArray[Any] | Labels]]:
    """The name of each user, the offsets of their examples, the row of each example, and all other columns."""
    table = pq.read_table(path, memory_map=True).combine_chunks()
    runs = pc.run_end_encode(table["user"].combine_chunks())
    offsets = np.concatenate([[0], runs.run_ends.to_numpy()]).astype(np.int64)
    columns = {
        name: _labels(table[name], tasks[name]) if name in tasks else _numpy(table[name])
        for name in table.column_names
        if name not in ("user", "row")
    }
    return _numpy(runs.values), offsets, table["row"].to_numpy(), columns


def _arrow(labels: Labels) -> pa.Array:
    if isinstance(labels, SingleLabels):
        return pa.array(labels.ids.astype(np.int32))
    return pa.ListArray.from_arrays(labels.indptr.astype(np.int32), labels.indices.astype(np.int32))


def _labels(column: pa.ChunkedArray, classes: tuple[str, ...]) -> Labels:
    array = column.combine_chunks()
    if not pa.types.is_list(array.type):
        return SingleLabels(array.to_numpy().astype(np.int64), classes)
    return MultiLabels(array.offsets.to_numpy().astype(np.int64), array.values.to_numpy().astype(np.int64), classes)


def _numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    if not pa.types.is_string(column.type):
        return column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    codes = (column if isinstance(column, pa.Array) else column.combine_chunks()).dictionary_encode()
    return codes.dictionary.to_numpy(zero_copy_only=False).astype(str)[codes.indices.to_numpy()]
