"""Small manifests to write stores from."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from manyeyes.core.population import SingleLabels
from manyeyes.data.manifest import Files, Manifest, Pixels
from manyeyes.data.store.chunks import CHUNK_SIZE

NUM_IMAGES = 10 * CHUNK_SIZE + 7


def small_manifest(count: int = 6, **changes: Any) -> Manifest:
    """Return a manifest of one example for each of a few images of user a or b."""
    manifest = Manifest(
        "small",
        Pixels(np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 3), np.uint8)),
        np.arange(count),
        np.array(["b", "a"] * (count // 2)),
        np.array(["train"] * count),
        {"task": SingleLabels(np.zeros(count, np.int64), ("all",))},
    )
    return replace(manifest, **changes)


def jpeg(size: int = 4, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), (200, 30, 40)).save(file, "JPEG", **options)
    return file.getvalue()


def manifest_of_files(folder: Path, files: dict[str, bytes], **changes: Any) -> Manifest:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    count = len(files)
    labels = {"task": SingleLabels(np.zeros(count, np.int64), ("all",))}
    users = np.array(["u"] * count)
    split = np.array(["train"] * count)
    manifest = Manifest("files", Files(folder, list(files)), np.arange(count), users, split, labels)
    return replace(manifest, **changes)


def folder_contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))}
