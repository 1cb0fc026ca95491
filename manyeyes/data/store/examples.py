"""The examples of a store: sorted by user, written to `examples.parquet` and read from it."""

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

RESERVED_COLUMNS = ("user", "split", "row")  # of the file; a dataset's columns and tasks have other names


@dataclass(frozen=True, eq=False)
class SortedExamples:
    """A manifest in the order of a store."""

    manifest: Manifest
    rows: Ints  # the row in the store of each example's image
    images: Ints  # the index in the source of each row

    def write(self, path: Path) -> None:
        pq.write_table(self._to_table(), path, compression="zstd", row_group_size=len(self.rows))

    def fingerprint(self) -> str:
        """Return a hash of the manifest without its pixels."""
        buffer = pa.BufferOutputStream()
        pq.write_table(self._to_table(), buffer)
        names = [self.manifest.source.name(index) for index in self.images.tolist()]
        classes = {task: labels.classes for task, labels in self.manifest.labels.items()}
        digest = hashlib.blake2b(buffer.getvalue(), digest_size=16)
        digest.update(repr((names, classes)).encode())
        return digest.hexdigest()

    def _to_table(self) -> pa.Table:
        manifest = self.manifest
        columns = {"user": manifest.users.astype(str), "split": manifest.split.astype(str), "row": self.rows}
        labels = {task: _from_labels(labels) for task, labels in manifest.labels.items()}
        return pa.table({name: pa.array(column) for name, column in columns.items()} | labels | dict(manifest.columns))


def sort_examples(manifest: Manifest) -> SortedExamples:
    """Sort examples by user, and images in the order in which the examples need them.

    Examples without a user get one named after their split.
    """
    users = np.asarray(manifest.users)
    names = users.astype(str)
    for split in np.unique(manifest.split[names == ""]).tolist():
        name = split
        while name in names:
            name += "_"
        names = np.where((names == "") & (manifest.split == split), name, names)
    keys = users if users.dtype.kind in "iu" else names  # 2 comes before 10
    manifest = replace(manifest, users=names).take(np.argsort(keys, kind="stable"))
    _, first, inverse = np.unique(manifest.image, return_index=True, return_inverse=True)
    return SortedExamples(manifest, np.argsort(np.argsort(first))[inverse], manifest.image[np.sort(first)])


def read(
    data: bytes, tasks: Mapping[str, tuple[str, ...]]
) -> tuple[NDArray[np.str_], Ints, Ints, dict[str, NDArray[Any] | Labels]]:
    """Return the name of each user, the offsets of their examples, the row of each example, and all other columns."""
    # Without threads: `pq.read_table` leaves a thread that may release these bytes of Python while the interpreter ends,
    # and then the process is aborted ("terminate called without an active exception") after all of its work is done.
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).combine_chunks()
    arrays = {name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)}
    runs = pc.run_end_encode(arrays.pop("user"))
    offsets = np.concatenate([[0], runs.run_ends.to_numpy()]).astype(np.int64)
    rows = arrays.pop("row").to_numpy()
    if rows.dtype.kind not in "iu":
        raise ValueError(f"its rows are {rows.dtype} and not whole numbers")
    if "split" in arrays and not pa.types.is_string(arrays["split"].type):
        raise ValueError(f"its splits are {arrays['split'].type} and not text")
    columns = {k: _to_labels(array, tasks[k]) if k in tasks else _to_numpy(array) for k, array in arrays.items()}
    for task, classes in tasks.items():
        _, ids = columns[task].nonzero()
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(classes):
            raise ValueError(f"its labels of {task} are not among its {len(classes)} classes")
    return _to_numpy(runs.values), offsets, rows, columns


def _from_labels(labels: Labels) -> pa.Array:
    if isinstance(labels, SingleLabels):
        return pa.array(labels.ids.astype(np.int32))
    return pa.ListArray.from_arrays(labels.indptr.astype(np.int32), labels.indices.astype(np.int32))


def _to_labels(array: pa.Array, classes: tuple[str, ...]) -> Labels:
    if not pa.types.is_list(array.type):
        return SingleLabels(array.to_numpy().astype(np.int64), classes)
    return MultiLabels(array.offsets.to_numpy().astype(np.int64), array.values.to_numpy().astype(np.int64), classes)


def _to_numpy(array: pa.Array) -> NDArray[Any]:
    if not pa.types.is_string(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    codes = array.dictionary_encode()
    return np.asarray(codes.dictionary.to_numpy(zero_copy_only=False).astype(str)[codes.indices.to_numpy()])
