"""FLAIR from the hub: the parquet shards of `apple/flair`, whose file names say the split."""

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
from numpy.typing import NDArray

from manyeyes.core.population import Ints, MultiLabels
from manyeyes.data.datasets import flair
from manyeyes.data.manifest import Manifest, count_and_name
from manyeyes.data.synthetic.dataset import SyntheticImages

REPOSITORY = "apple/flair"
PAGE = "https://huggingface.co/datasets/apple/flair"
SHARDS = tuple(
    f"data/{split}-{number:05d}-of-{count:05d}.parquet"
    for split, count in (("train", 10), ("val", 2), ("test", 2))
    for number in range(count)
)
SCHEMA = pa.schema(
    {
        "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        "image_id": pa.string(),
        "user_id": pa.string(),
        "labels": pa.list_(pa.string()),
        "fine_grained_labels": pa.list_(pa.string()),
    }
)
ROW_GROUP = 100  # rows, as the datasets library writes images


@dataclass(frozen=True, eq=False)
class ParquetShards:
    """Images in the `image` column of parquet files, each read with its row group when it is asked for."""

    paths: tuple[Path, ...]
    shard: Ints  # of each image: its file,
    group: Ints  # its row group there,
    place: Ints  # and its row in that
    ids: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int) -> bytes:
        path = self.paths[self.shard[index]]
        try:
            found = self._group(int(self.shard[index]), int(self.group[index]))[int(self.place[index])].as_py()
        except pa.ArrowException as error:
            raise OSError(f"{path} cannot be read: {error}") from None
        if found is None:
            raise OSError(f"{path} has no bytes for image {self.ids[index]}")
        return bytes(found)

    def name(self, index: int) -> str:
        return str(self.ids[index])

    def take(self, chosen: Ints) -> ParquetShards:
        return ParquetShards(self.paths, self.shard[chosen], self.group[chosen], self.place[chosen], self.ids[chosen])

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetShards, (
            self.paths,
            self.shard,
            self.group,
            self.place,
            self.ids,
        )  # another process opens its own files

    @cached_property
    def _group(self) -> Callable[[int, int], pa.ChunkedArray]:
        @lru_cache(maxsize=4)
        def file(shard: int) -> pq.ParquetFile:
            return pq.ParquetFile(self.paths[shard])

        @lru_cache(maxsize=2)
        def images(shard: int, group: int) -> pa.ChunkedArray:
            return pc.struct_field(file(shard).read_row_group(group, columns=["image.bytes"]).column("image"), "bytes")

        return images


def read_manifest(raw: Path) -> Manifest:
    """Every image of the shards below a folder."""
    paths = tuple(sorted(raw.rglob("*.parquet")))
    if not paths:
        raise ValueError(f"{raw} holds no parquet files: give the folder where {REPOSITORY} was downloaded")
    splits = [_split(path) for path in paths]
    tables, groups = zip(*map(_read, paths), strict=True)
    sizes = [len(table) for table in tables]
    table = pa.concat_tables(tables)
    if not len(table):
        raise ValueError(f"the parquet files in {raw} hold no rows: download them again")
    rows = np.concatenate(groups)
    ids = np.array(table["image_id"].to_pylist(), dtype=np.str_)
    every = ParquetShards(
        paths,
        shard=np.repeat(np.arange(len(paths)), sizes),
        group=np.repeat(np.concatenate([np.arange(len(sizes)) for sizes in groups]), rows),
        place=np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows),
        ids=ids,
    )
    entries = flair.Entries(
        ids,
        np.array(table["user_id"].to_pylist(), dtype=np.str_),
        np.repeat(splits, sizes),
        {task: _labels(table[column]) for task, column in flair.TASKS.items()},
    )
    missing = _missing(paths)
    return flair.assemble(
        entries,
        np.ones(len(ids), bool),
        every.take,
        flair.read_relationship(raw / flair.RELATIONSHIP),
        {"source": PAGE, "licence": flair.LICENCE}
        | ({"shards that are not there": count_and_name(np.array(missing))} if missing else {}),
    )


def _split(path: Path) -> str:
    """From `train-00000-of-00010.parquet`, or from `train/0000.parquet` as the hub's converter names them."""
    for name in (path.name.split("-")[0], path.parent.name):
        if name in flair.SPLITS:
            return flair.SPLITS[name]
    raise ValueError(f"{path} names no split: a shard is called like train-00000-of-00010.parquet")


def _missing(paths: tuple[Path, ...]) -> list[str]:
    """The shards that the others' names (`-of-00010`) speak of and that are not there."""
    there = {path.name for path in paths}
    told = [re.fullmatch(r"(\w+)-\d{5}-of-(\d{5})(.*)", path.name) for path in paths]
    all_of = {(found[1], int(found[2])) for found in told if found and found[3] == ".parquet"}
    expected = [f"{split}-{k:05d}-of-{count:05d}.parquet" for split, count in sorted(all_of) for k in range(count)]
    return [name for name in expected if name not in there]


def _read(path: Path) -> tuple[pa.Table, Ints]:
    """All but the images of one shard, and how many rows each of its row groups has."""
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        lacking = [name for name in SCHEMA.names if name not in names]
        if lacking:
            raise ValueError(f"{path} has no column {lacking[0]!r} but {', '.join(names)}: it is not a shard of FLAIR")
        groups = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
        table = file.read(columns=SCHEMA.names[1:]).select(SCHEMA.names[1:])
    except (pa.ArrowException, OSError):
        size = path.stat().st_size
        raise ValueError(f"{path} ({size} bytes) is not a whole parquet file: download it again") from None
    try:
        return table.cast(SCHEMA.remove(0)), np.array(groups, np.int64)
    except pa.ArrowException as error:
        raise ValueError(f"{path} has columns of other kinds than FLAIR's ({error}): download it again") from None


def _labels(column: pa.ChunkedArray) -> MultiLabels:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    names = pc.list_flatten(column).combine_chunks().dictionary_encode()
    owner = np.repeat(np.arange(len(column)), lengths)
    codes = names.indices.to_numpy().astype(np.int64)
    return flair.compress(owner, *flair.in_order(codes, names.dictionary.to_pylist()), len(column))


def write_synthetic(world: SyntheticImages, raw: Path, shards: int = 2) -> None:
    """Write a procedural world as the hub's parquet shards, so many a split."""
    population, entries = flair.write_default_synthetic(world)
    split = np.array([entry.pop("partition") for entry in entries])
    (raw / "data").mkdir(parents=True, exist_ok=True)
    for name in np.unique(split):
        for number, part in enumerate(np.array_split(np.flatnonzero(split == name), shards)):
            images = [{"bytes": flair.jpeg(population, k), "path": f"{entries[k]['image_id']}.jpg"} for k in part]
            rows = [{"image": image, **entries[k]} for image, k in zip(images, part, strict=True)]
            path = raw / "data" / f"{name}-{number:05d}-of-{shards:05d}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=ROW_GROUP)
