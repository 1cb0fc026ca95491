"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009) with users, made from them by a partition; and stand-ins for them."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data import partition as share
from manyeyes.data.datasets.cifar_files import EDITIONS, SIDE, STANDIN, find, read
from manyeyes.data.manifest import Manifest, Pixels

PARTITIONS = ("dirichlet", "released", "classes", "iid")


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
    """CIFAR's images with users; `raw` holds one of the four archives, or the folder that was in it.

    With `partition` dirichlet, released (in `splits`) or iid the train images have users and the test images belong
    to nobody, as in Hsu et al.; with classes all 60,000 have users, 83/17 within each, as in FedPer. Of CIFAR-100's
    labels, fine or coarse, those of `task` come first and users are made from them.
    """
    if classes not in (10, 100):
        raise ValueError(f"there is no CIFAR-{classes}: give 10 or 100 classes")
    if partition not in PARTITIONS:
        raise ValueError(f"there is no partition called {partition!r}: give {', '.join(PARTITIONS)}")
    if task not in ("fine", "coarse"):
        raise ValueError(f"CIFAR-100 has no labels called {task!r}: give fine or coarse")
    found = find(Path(raw), classes)
    images, labels, train = read(found)
    main = task if classes == 100 else "class"
    labels = {main: labels[main], **labels}
    notes: dict[str, Any] = {"source": found.origin, "standin": found.standin, "partition": partition, "seed": seed}
    split = np.repeat(["train", "test"], [train, len(images) - train])
    official = np.concatenate([np.arange(train), np.arange(len(images) - train)])
    columns = {"image_id": np.array([f"{part}-{i:05d}" for part, i in zip(split, official, strict=True)])}
    if partition == "classes":
        owners = share.classes_per_client(labels[main].ids, users, classes_per_client, seed)
        split = share.within_users(owners, seed)
        notes["classes_per_client"] = classes_per_client
    elif partition == "iid":
        owners = share.iid(train, users, seed)
    elif partition == "dirichlet":
        owners = share.dirichlet(labels[main].ids[:train], users, alpha, seed)
        notes["alpha"] = alpha
    elif splits is not None:
        released = labels["fine" if classes == 100 else "class"].ids[:train]
        owners = share.released(splits, released, f"cifar{classes}", alpha)
        notes |= {"alpha": alpha, "splits": Path(splits).name}
    else:
        raise ValueError("the released partition needs its splits: give the .zip, folder, .csv or .npz that holds them")
    width = len(str(owners.max()))
    names = np.array([f"{user:0{width}d}" for user in owners] + [""] * (len(images) - len(owners)))
    kept = np.flatnonzero(np.append(owners >= 0, np.ones(len(images) - len(owners), bool)))
    source = Pixels(images, f"cifar{classes} image")
    return Manifest(f"cifar{classes}", source, np.arange(len(images)), names, split, labels, columns, notes).take(kept)


def write_synthetic(population: Population, raw: Path, kind: str) -> Path:
    """Write any population of 32 x 32 images as an edition of CIFAR; its users are lost, as CIFAR has none."""
    if kind not in EDITIONS:
        raise ValueError(f"there is no CIFAR called {kind!r}: give {', '.join(EDITIONS)}")
    edition, most = EDITIONS[kind], 100 if "fine" in EDITIONS[kind].tasks else 10
    if population.image_shape != (SIDE, SIDE, 3) or not isinstance(population.labels, SingleLabels):
        raise ValueError("a stand-in of CIFAR needs images of 32 x 32 pixels with one class each")
    if len(population.classes) > most:
        raise ValueError(f"the population has {len(population.classes)} classes: CIFAR-{most} has {most}")
    order = make_rng(0, "cifar stand-in").permutation(len(population))
    split = population.columns.get("split")
    test = np.arange(len(order)) % 6 == 5 if split is None else np.asarray(split)[order] == "test"
    if not test.any() or (~test).sum() < len(edition.train):
        raise ValueError(
            f"the population has {(~test).sum()} train and {test.sum()} test images, few for {kind}: give more users"
        )
    names = {"fine": population.classes, "class": population.classes}
    names["coarse"] = tuple(f"group {i}" for i in range(-(-len(population.classes) // 5)))  # of five, as in CIFAR-100
    folder = Path(raw) / edition.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STANDIN).write_text("These are not the images of CIFAR.\n")
    parts = [*np.array_split(order[~test], len(edition.train)), order[test]]
    for name, part in zip((*edition.train, edition.test), parts, strict=True):
        pixels = population.pixels(part).transpose(0, 3, 1, 2).reshape(len(part), -1)
        ids = population.labels.targets(part)
        columns = [ids // 5 if task == "coarse" else ids for task in edition.tasks]
        if edition.binary:
            (folder / name).write_bytes(np.column_stack([*columns, pixels]).astype(np.uint8).tobytes())
        else:
            keys = [task.labels for task in edition.tasks.values()]
            batch = {"data": pixels} | dict(zip(keys, (c.tolist() for c in columns), strict=True))
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    for file in {task.file for task in edition.tasks.values()}:
        meta = {task.names: list(names[name]) for name, task in edition.tasks.items() if task.file == file}
        text = "".join(f"{name}\n" for name in next(iter(meta.values()))).encode()
        (folder / file).write_bytes(text if edition.binary else pickle.dumps(meta, protocol=2))
    return folder
