"""FLAIR from Hugging Face: the parquet shards of `apple/flair`, whose file names contain the split."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manyeyes.core.population import Ints
from manyeyes.data.datasets import flair
from manyeyes.data.manifest import Manifest, keeps_synthetic_mark
from manyeyes.data.tables import check_columns
from manyeyes.io.parsing import first_line

write_synthetic = flair.write_synthetic  # as the raw download
REPOSITORY = "apple/flair"
MAX_NAMED = 5  # shards in a message
PAGE = f"https://huggingface.co/datasets/{REPOSITORY}"


@dataclass(frozen=True, eq=False)
class ParquetShards:
    """Images in the `image` column of parquet files; an image is read with its row group."""

    paths: tuple[Path, ...]
    shard: Ints  # of each image: the index of its file,
    row: Ints  # and its row there
    ids: list[str]

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int) -> bytes:
        path, row = self.paths[self.shard[index]], int(self.row[index])
        try:
            starts = _open_shard(path)[1]
            group = int(np.searchsorted(starts, row, side="right")) - 1
            data: bytes | None = _read_images(path, group)[row - int(starts[group])].as_py()
        except (pa.ArrowException, OSError, KeyError) as error:
            raise OSError(f"{path} cannot be read: {first_line(error)}") from None
        if data is None:
            raise OSError(f"{path} has no bytes for image {self.ids[index]}")
        return data

    def name(self, index: int) -> str:
        return self.ids[index]


@lru_cache(maxsize=4)
def _open_shard(path: Path) -> tuple[pq.ParquetFile, Ints]:
    """Return an open file, and the first row of each of its row groups."""
    file = pq.ParquetFile(path)
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    return file, np.cumsum([0, *sizes])


@lru_cache(maxsize=2)
def _read_images(path: Path, group: int) -> pa.ChunkedArray:
    return pc.struct_field(_open_shard(path)[0].read_row_group(group, columns=["image.bytes"]).column("image"), "bytes")


@keeps_synthetic_mark
def read_manifest(raw: Path) -> Manifest:
    """Return every image of the shards below a folder, or of the raw JSON and JPEGs if the folder has them."""
    if (raw / flair.LABELS).exists():
        return flair.read_manifest(raw)
    _open_shard.cache_clear()  # the files may have been downloaded again
    _read_images.cache_clear()
    paths = tuple(sorted(raw.rglob("*.parquet")))
    if not paths:
        raise ValueError(f"{raw} contains no parquet files: give the folder where {REPOSITORY} was downloaded")
    splits = [_split(path) for path in paths]
    tables = [_read_shard(path) for path in paths]
    table = pa.concat_tables(tables)
    if not len(table):
        raise ValueError(f"The parquet files in {raw} have no rows: download them again")
    shard = np.repeat(np.arange(len(paths)), [len(table) for table in tables])
    row = np.concatenate([np.arange(len(table)) for table in tables])
    source = ParquetShards(paths, shard, row, table["image_id"].to_pylist())
    missing, classes = _missing_shards(paths), flair.read_classes(raw / flair.RELATIONSHIP)
    if missing and not classes:
        more = ", ..." if len(missing) > MAX_NAMED else ""
        problem = f"{raw} lacks {len(missing)} shards of {REPOSITORY} ({', '.join(missing[:MAX_NAMED])}{more})"
        fix = f"download them, or put {flair.RELATIONSHIP} there, which has all classes"
        raise ValueError(f"{problem}, and with them classes may be missing: {fix}")
    manifest = flair.make_manifest(table, np.array(splits)[shard], source, PAGE, classes if missing else None)
    manifest = replace(manifest, caveats=(f"{len(missing)} shards missing",) if missing else ())
    return flair.check_users_and_labels(manifest, raw / flair.RELATIONSHIP).add_notes({"missing shards": missing})


def _split(path: Path) -> str:
    """Return the split of `train-00000-of-00010.parquet`, or of `train/0000.parquet` as Hugging Face converts it."""
    for name in (path.name.split("-")[0], path.parent.name):
        if name in flair.SPLITS:
            return flair.SPLITS[name]
    raise ValueError(f"{path} does not name a split: name it like train-00000-of-00010.parquet")


def _missing_shards(paths: tuple[Path, ...]) -> list[str]:
    """Return the shards that should exist by the names of the others (`-of-00010`, or the numbers before), and splits."""
    names = {path.name for path in paths}
    matches = [re.fullmatch(r"(\w+)-\d{5}-of-(\d{5})\.parquet", name) for name in names]
    counts = sorted({(match[1], int(match[2])) for match in matches if match})
    expected = [f"{split}-{k:05d}-of-{count:05d}.parquet" for split, count in counts for k in range(count)]
    absent = sorted(set(flair.SPLITS.values()) - set(map(_split, paths)))
    missing = [name for name in expected if name not in names]
    return [*missing, *_missing_numbers(paths), *(f"all of {split}" for split in absent)]


def _missing_numbers(paths: tuple[Path, ...]) -> list[str]:
    """Return the files missing from folders with 0000.parquet, 0001.parquet and so on."""
    files = {path for path in paths if path.stem.isdecimal()}
    needed = {path.with_name(f"{number:04d}.parquet") for path in files for number in range(int(path.stem))}
    return [f"{path.parent.name}/{path.name}" for path in sorted(needed - files)]


def _read_shard(path: Path) -> pa.Table:
    """Return all columns of one shard but the images."""
    try:
        file = pq.ParquetFile(path)
        check_columns(path, file.schema_arrow.names, ("image", *flair.SCHEMA.names))
        table = file.read(columns=flair.SCHEMA.names).select(flair.SCHEMA.names)
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError):
        size = path.stat().st_size
        raise ValueError(f"{path} ({size} bytes) is not a complete parquet file: download it again") from None
    try:
        table = table.cast(flair.SCHEMA)
    except pa.ArrowException as error:
        raise ValueError(
            f"{path} has columns of other types than FLAIR's ({first_line(error)}): download it again"
        ) from None
    for name in flair.SCHEMA.names:
        values = pc.list_flatten(table[name]) if name in flair.TASKS.values() else table[name]
        if values.null_count:
            raise ValueError(f"{path} has missing values in {name}: download it again")
    return table
