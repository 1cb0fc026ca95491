"""The file meta.json of a store: what the store contains, the checksums of its other files, and its own."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyeyes.data.store.builder import IMAGE_FILES, UNCHECKED_VERSION, VERSION
from manyeyes.data.store.checksums import CHECKSUMS_FILE, FIX

META_FILE, EXAMPLES_FILE = "meta.json", "examples.parquet"
CHECKSUM_KEY = "checksum"  # the CRC-32 of everything else in the file


def meta_text(meta: Mapping[str, Any]) -> str:
    """Return the text of meta.json, with its checksum."""
    text = json.dumps(meta, default=lambda value: value.tolist() if hasattr(value, "tolist") else str(value))
    plain = json.loads(text)
    return json.dumps(plain | {CHECKSUM_KEY: meta_checksum(plain)}, indent=1) + "\n"


def meta_checksum(meta: Mapping[str, Any]) -> str:
    content = {name: value for name, value in meta.items() if name != CHECKSUM_KEY}
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def read_meta(path: Path) -> dict[str, Any]:
    """Return the content of a store's meta.json; raise ValueError if there is no store, or it is damaged."""
    file = path / META_FILE
    if not file.exists():
        target = Path(os.path.realpath(path))
        if target.with_name(f".{target.name}.preparing").exists():
            raise ValueError(f"{path} is not complete: run its `manyeyes data prepare` command again")
        raise ValueError(f"No prepared dataset at {path}: create one with `manyeyes data prepare NAME --raw DIR`")
    try:
        meta: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        version = int(meta["version"])
        is_changed = CHECKSUM_KEY in meta and meta[CHECKSUM_KEY] != meta_checksum(meta)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError(f"{file} is damaged: {FIX}") from None
    if is_changed or (version == VERSION and CHECKSUM_KEY not in meta):
        raise ValueError(f"{file} is damaged: {FIX}")
    if version not in (VERSION, UNCHECKED_VERSION):
        fix = "upgrade manyeyes" if version > VERSION else "prepare it again"
        raise ValueError(f"{path} has format {version} and this manyeyes reads format {VERSION}: {fix}")
    if not _is_valid(meta, version):
        raise ValueError(f"{file} is damaged: {FIX}")
    return meta


def _is_valid(meta: Mapping[str, Any], version: int) -> bool:
    """Return whether all that is needed to open a store is there, and of the right type."""
    tasks, encoding, shape = (meta.get(name) for name in ("tasks", "encoding", "shape"))
    if encoding not in tuple(IMAGE_FILES):
        return False
    files = {IMAGE_FILES[encoding], EXAMPLES_FILE} | ({"offsets.npy"} if encoding == "jpeg" else set())
    files |= {CHECKSUMS_FILE} if version == VERSION else set()
    is_named = isinstance(tasks, dict) and tasks and all(isinstance(classes, list) for classes in tasks.values())
    is_shaped = isinstance(shape, list) and len(shape) == 2 and all(type(side) is int and side > 0 for side in shape)
    return bool(is_named and is_shaped) and all(_has_numbers(meta.get(name), files) for name in ("bytes", "crc32"))


def _has_numbers(table: object, names: set[str]) -> bool:
    return isinstance(table, dict) and names <= table.keys() and all(type(value) is int for value in table.values())
