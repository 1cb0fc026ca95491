"""MedMNIST (Yang et al. 2023): one npz file with the images and labels of train, val and test."""

from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.core.labels import make_labels
from manyeyes.data import partition as partitions
from manyeyes.data.manifest import Manifest, Pixels, keeps_synthetic_mark, write_synthetic_marker
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.io.parsing import named_if_damaged

SPLITS = ("train", "val", "test")
PAGE = "https://medmnist.com"


@keeps_synthetic_mark
def read_manifest(
    raw: Path,
    *,
    partition: str = "dirichlet",
    users: int = 100,
    alpha: float = 0.1,
    classes_per_client: int = 4,
    seed: int = 0,
) -> Manifest:
    """Return the images of an npz file, or of the only one in a folder, whose training images a partition gives to users."""
    files = [raw] if raw.is_file() else sorted(raw.glob("*.npz"))
    if len(files) != 1:
        raise ValueError(f"{raw} has {len(files)} npz files: give the file of one dataset, such as --raw pathmnist.npz")
    with named_if_damaged(files[0], "download it again"), np.load(files[0]) as arrays:
        images = np.concatenate([arrays[f"{split}_images"] for split in SPLITS])
        values = np.concatenate([arrays[f"{split}_labels"] for split in SPLITS])
        split = np.repeat(SPLITS, [len(arrays[f"{split}_images"]) for split in SPLITS])
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        raise ValueError(f"{files[0]} has images of {images.dtype} {list(images.shape)}: give one with 2D images")
    pixels = np.repeat(images[..., None], 3, axis=3) if images.ndim == 3 else images
    one_class = values.ndim == 1 or values.shape[1] == 1
    manifest = Manifest(
        dataset=files[0].stem,
        source=Pixels(pixels, f"{files[0].stem} image"),
        image=np.arange(len(pixels)),
        users=np.full(len(pixels), ""),
        split=split,
        labels={"label": make_labels(values.ravel() if one_class else values)},
        columns={"image_id": np.arange(len(pixels))},
        notes={"source": PAGE},
    )
    return partitions.give_users(manifest, partition, users, alpha, classes_per_client, seed)


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images as an npz file; the users are lost."""
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    labels, split = population.labels.nonzero()[1], np.asarray(population.columns["split"])
    arrays: dict[str, Any] = {}
    for name in SPLITS:
        examples = np.flatnonzero(split == name)
        arrays |= {f"{name}_images": population.pixels(examples), f"{name}_labels": labels[examples][:, None]}
    np.savez(raw / "synthetic.npz", **arrays)
