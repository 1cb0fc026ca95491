"""FLAIR from Hugging Face: the parquet shards of `apple/flair`, whose file names contain the split."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manyeyes.core.population import Ints
from manyeyes.data.dataset import Dataset
from manyeyes.data.datasets import flair
from manyeyes.data.manifest import Manifest

REPOSITORY = "apple/flair"
PAGE = f"https://huggingface.co/datasets/{REPOSITORY}"


@dataclass(frozen=True, eq=False)
class ParquetShards:
    """Images in the `image` column of parquet files; an image is read with its row group."""

    paths: tuple[Path, ...]
    shard: Ints  # of each image: the index of its file,
    group: Ints  # its row group there,
    row: Ints  # and its row in that
    ids: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int) -> bytes:
        path = self.paths[self.shard[index]]
        try:
            data = self._read_group(int(self.shard[index]), int(self.group[index]))[int(self.row[index])].as_py()
        except pa.ArrowException as error:
            raise OSError(f"{path} cannot be read: {error}.") from None
        if data is None:
            raise OSError(f"{path} has no bytes for image {self.ids[index]}.")
        return bytes(data)

    def name(self, index: int) -> str:
        return self.ids[index]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_read_group"}  # open files

    @cached_property
    def _read_group(self) -> Callable[[int, int], pa.ChunkedArray]:
        open_shard = lru_cache(maxsize=4)(lambda shard: pq.ParquetFile(self.paths[shard]))

        @lru_cache(maxsize=2)
        def read_group(shard: int, group: int) -> pa.ChunkedArray:
            images = open_shard(shard).read_row_group(group, columns=["image.bytes"]).column("image")
            return pc.struct_field(images, "bytes")

        return read_group


def read_manifest(raw: Path) -> Manifest:
    """Return every image of the shards below a folder."""
    paths = tuple(sorted(raw.rglob("*.parquet")))
    if not paths:
        raise ValueError(f"{raw} contains no parquet files: give the folder where {REPOSITORY} was downloaded.")
    splits = [_split(path) for path in paths]
    tables, group_sizes = zip(*map(_read_shard, paths), strict=True)
    table = pa.concat_tables(tables)
    if not len(table):
        raise ValueError(f"The parquet files in {raw} have no rows: download them again.")
    num_rows = [len(shard) for shard in tables]
    sizes = np.concatenate(group_sizes)
    source = ParquetShards(
        paths,
        shard=np.repeat(np.arange(len(paths)), num_rows),
        group=np.repeat(np.concatenate([np.arange(len(groups)) for groups in group_sizes]), sizes),
        row=np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes),
        ids=table["image_id"].to_pylist(),
    )
    manifest = flair.make_manifest(table, np.repeat(splits, num_rows), source, PAGE)
    return flair.check_users_and_labels(manifest, raw / flair.RELATIONSHIP).add_notes(
        {"missing shards": _missing_shards(paths)}
    )


def _split(path: Path) -> str:
    """Return the split of `train-00000-of-00010.parquet`, or of `train/0000.parquet` as Hugging Face converts it."""
    for name in (path.name.split("-")[0], path.parent.name):
        if name in flair.SPLITS:
            return flair.SPLITS[name]
    raise ValueError(f"{path} does not name a split: name it like train-00000-of-00010.parquet.")


def _missing_shards(paths: tuple[Path, ...]) -> list[str]:
    """Return the shards that should exist by the names of the others (`-of-00010`)."""
    names = {path.name for path in paths}
    matches = [re.fullmatch(r"(\w+)-\d{5}-of-(\d{5})\.parquet", name) for name in names]
    counts = sorted({(match[1], int(match[2])) for match in matches if match})
    expected = [f"{split}-{k:05d}-of-{count:05d}.parquet" for split, count in counts for k in range(count)]
    return [name for name in expected if name not in names]


def _read_shard(path: Path) -> tuple[pa.Table, Ints]:
    """Return all columns of one shard but the images, and the number of rows of each of its row groups."""
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        if missing := [name for name in ("image", *flair.SCHEMA.names) if name not in names]:
            raise ValueError(
                f"{path} has columns {', '.join(names)} and no column {missing[0]!r}: give FLAIR's shards."
            )
        groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        table = file.read(columns=flair.SCHEMA.names).select(flair.SCHEMA.names)
    except (pa.ArrowException, OSError):
        size = path.stat().st_size
        raise ValueError(f"{path} ({size} bytes) is not a complete parquet file: download it again.") from None
    try:
        return table.cast(flair.SCHEMA), np.array(groups, np.int64)
    except pa.ArrowException as error:
        raise ValueError(f"{path} has columns of other types than FLAIR's ({error}): download it again.") from None


def _read_either(raw: Path) -> Manifest:
    """Return the manifest of the raw JSON and JPEGs or of the parquet shards, whichever the folder has."""
    return flair.read_manifest(raw) if (raw / flair.LABELS).exists() else read_manifest(raw)


DATASETS = {
    "flair": Dataset(
        "FLAIR (Song et al. 2022): raw JSON and JPEGs, or apple/flair's parquet shards",
        _read_either,
        256,
        flair.write_synthetic,
        flair.REMOTE_FILES,
    )
}
