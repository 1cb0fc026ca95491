"""Tiny-ImageNet-200 (Le and Yang 2015): a folder for each class of train, and a table of the validation images."""

from pathlib import Path

import numpy as np

from manyeyes.core.labels import make_labels
from manyeyes.data import partition as partitions
from manyeyes.data.manifest import Files, Manifest, keeps_synthetic_mark, write_synthetic_marker
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic, write_images

FOLDER, ANNOTATIONS = "tiny-imagenet-200", "val_annotations.txt"
PAGE = "http://cs231n.stanford.edu"


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
    """Return the train images, which a partition gives to users, and the validation images, which are for testing."""
    root = raw / FOLDER if (raw / FOLDER).is_dir() else raw
    train = sorted(path.relative_to(root).as_posix() for path in root.glob("train/*/images/*.JPEG"))
    table = root / "val" / ANNOTATIONS
    if not train or not table.is_file():
        missing = table if train else root / "train/CLASS/images/*.JPEG"
        raise ValueError(f"{missing} does not exist: extract {FOLDER}.zip into {raw}")
    rows = [line.split("\t") for line in table.read_text().splitlines() if line]
    if short := next((number for number, row in enumerate(rows, 1) if len(row) < 2), None):
        raise ValueError(f"{table}, line {short} has no class: extract {FOLDER}.zip again")
    paths = [*train, *(f"val/images/{row[0]}" for row in rows)]
    manifest = Manifest(
        dataset="tiny_imagenet",
        source=Files(root, paths),
        image=np.arange(len(paths)),
        users=np.full(len(paths), ""),
        split=np.repeat(["train", "test"], [len(train), len(rows)]),
        labels={"label": make_labels([*(path.split("/")[1] for path in train), *(row[1] for row in rows)])},
        columns={"image_id": np.array([Path(path).stem for path in paths])},
        notes={"source": PAGE},
    )
    return partitions.give_users(manifest, partition, users, alpha, classes_per_client, seed)


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images as Tiny-ImageNet; the users are lost, and those of the test split are validation images."""
    root = raw / FOLDER
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    labels, is_test = population.labels.nonzero()[1], np.asarray(population.columns["split"]) == "test"
    names = [f"n{label:08d}" for label in labels]
    files = [
        f"val/images/val_{row}.JPEG" if test else f"train/{name}/images/{name}_{row}.JPEG"
        for row, (name, test) in enumerate(zip(names, is_test, strict=True))
    ]
    write_images(population, [root / file for file in files])
    rows = [f"val_{row}.JPEG\t{names[row]}\t0\t0\t1\t1\n" for row in np.flatnonzero(is_test)]
    (root / "val" / ANNOTATIONS).write_text("".join(rows))
