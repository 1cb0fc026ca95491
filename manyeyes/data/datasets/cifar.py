"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), given to users by a partition; and synthetic images in their format."""

from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.core.registry import format_value
from manyeyes.core.rng import make_rng
from manyeyes.data import partition as partitions
from manyeyes.data.datasets.cifar_files import EDITIONS, SIDE, find, read
from manyeyes.data.manifest import Manifest, Pixels, check_choice, write_synthetic_marker
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic


def read_manifest(
    raw: Path,
    *,
    classes: int = 10,
    partition: str = "dirichlet",
    users: int = 100,
    alpha: float = 0.1,
    classes_per_client: int = 4,
    splits: Path | None = None,
    task: str = "fine",
    seed: int = 0,
) -> Manifest:
    """Return CIFAR's images with users; `raw` is one of the four archives, its folder, or a folder with one of them.

    With `partition` dirichlet, released (in `splits`) or iid the train images have users and the test images have none,
    as in Hsu et al.; with classes all 60,000 have users, 83/17 within each, as in FedPer. Of CIFAR-100's labels, fine
    or coarse, those of `task` come first and users are made from them.
    """
    check_choice("classes of CIFAR", classes, (10, 100))
    if not partition.startswith(partitions.FLOWER_PREFIX):
        check_choice("partition", partition, ("dirichlet", "released", "classes", "iid"))
    check_choice("task of CIFAR-100", task, ("fine", "coarse"))
    if splits is not None and partition != "released":
        unused = f"splits={format_value(str(splits))} are not used by partition={partition}"
        raise ValueError(f"{unused}: set partition=released")
    files = find(Path(raw), classes)
    images, labels, num_train = read(files)
    first_task = task if classes == 100 else "class"
    ids = labels[first_task].ids
    notes: dict[str, Any] = {"source": str(files.origin)}
    split = np.repeat(["train", "test"], [num_train, len(images) - num_train])
    image_ids = [f"{name}-{i if i < num_train else i - num_train:05d}" for i, name in enumerate(split)]
    if partition == "classes":
        notes |= {"classes_per_client": classes_per_client}
        owners = partitions.classes_per_client(ids, users, classes_per_client, seed)
        split = partitions.within_users(owners, seed)
    elif partition == "iid" or partition.startswith(partitions.FLOWER_PREFIX):
        owners = partitions.make_owners(ids[:num_train], partition, users, alpha, classes_per_client, seed)
    elif partition == "dirichlet":
        notes |= {"alpha": alpha}
        owners = partitions.dirichlet(ids[:num_train], users, alpha, seed)
    elif splits is not None:
        notes |= {"alpha": alpha, "splits": Path(splits).name}
        released_ids = labels["fine" if classes == 100 else "class"].ids[:num_train]
        owners = partitions.released(splits, released_ids, f"cifar{classes}", alpha)
    else:
        raise ValueError("partition=released needs splits: set it to the .zip, folder, .csv or .npz of the splits")
    names = np.char.zfill(owners.astype(np.str_), len(str(owners.max())))
    manifest = Manifest(
        dataset=f"cifar{classes}",
        source=Pixels(images, f"cifar{classes} image"),
        image=np.arange(len(images)),
        users=np.concatenate([np.where(owners >= 0, names, ""), np.full(len(images) - len(owners), "")]),
        split=split,
        labels={first_task: labels[first_task], **labels},
        columns={"image_id": np.array(image_ids)},
        notes=notes | {"partition": partition, "seed": seed},
    )
    manifest = manifest.take(np.flatnonzero((manifest.users != "") | (split == "test")))
    return manifest.as_synthetic() if files.synthetic else manifest


def write_synthetic(synthetic: SyntheticImages, raw: Path, classes: int) -> None:
    """Write synthetic images as the binary CIFAR-10 or CIFAR-100, without their users."""
    if synthetic.size != SIDE or synthetic.coarse > classes:
        fix = f"set size={SIDE} and coarse to at most {classes} for CIFAR-{classes}"
        raise ValueError(f"The synthetic images have size={synthetic.size} and coarse={synthetic.coarse}: {fix}")
    population, edition = make_synthetic(synthetic), EDITIONS[f"cifar-{classes}-binary"]
    order = make_rng(0, "cifar stand-in").permutation(len(population))
    is_test = np.asarray(population.columns["split"])[order] == "test"
    train, test = order[~is_test], order[is_test]
    if not len(test) or len(train) < len(edition.train):
        raise ValueError(f"CIFAR needs more than {len(train)} train and {len(test)} test images: give more users")
    folder = raw / edition.folder
    write_synthetic_marker(folder)
    batches = [*np.array_split(train, len(edition.train)), test]
    for file, examples in zip((*edition.train, edition.test), batches, strict=True):
        pixels = population.pixels(examples).transpose(0, 3, 1, 2).reshape(len(examples), -1)
        ids = population.labels.targets(examples)
        labels = [ids // 5 if task == "coarse" else ids for task in edition.class_files]
        (folder / file).write_bytes(np.column_stack([*labels, pixels]).astype(np.uint8).tobytes())
    groups = [f"group {i}" for i in range(-(-len(population.classes) // 5))]  # of five classes, as in CIFAR-100
    names = {"class": population.classes, "fine": population.classes, "coarse": groups}
    for task, file in edition.class_files.items():
        (folder / file).write_text("".join(f"{name}\n" for name in names[task]))
