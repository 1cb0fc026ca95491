"""Datasets for image classification of the Hugging Face hub, or in a folder: arrow, parquet, or an imagefolder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.from_dataset import MAX_BYTES_IN_MEMORY, LazyImages
from manyeyes.core.labels import Ints, Labels, MultiLabels, make_labels
from manyeyes.core.population import Population
from manyeyes.core.registry import register_library
from manyeyes.data import partition as partitions
from manyeyes.data.decode import UnreadableImage, decode, fit
from manyeyes.data.manifest import Manifest, Source, keeps_synthetic_mark, write_synthetic_marker
from manyeyes.data.store.images import encode
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.io.packages import import_optional
from manyeyes.io.parsing import first_line

NO_USERS = "none"  # as the column of users: the examples get users from a partitioner
SPLITS = {"train": "train", "validation": "val", "valid": "val", "val": "val", "dev": "val", "test": "test"}
USER_NAMES = ("user", "user_id", "writer", "writer_id", "client", "client_id", "author", "photographer", "subject")
LABEL_NAMES = ("label", "labels", "class", "target")


@dataclass(frozen=True, eq=False)
class DatasetImages:
    """The image column of a dataset; an image is its file, as it was stored."""

    dataset: Any  # whose images are not decoded
    column: str

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        image = self.dataset[index][self.column]
        if image is None:
            raise FileNotFoundError(f"{self.name(index)} has no image")
        return bytes(image["bytes"]) if image.get("bytes") else Path(image["path"]).read_bytes()

    def name(self, index: int) -> str:
        return f"image {index}"


@keeps_synthetic_mark
def read_manifest(
    raw: Path,
    *,
    config: str = "",
    user: str = "",
    label: str = "",
    image: str = "",
    partition: str = "",
    users: int = 100,
    alpha: float = 0.1,
    classes_per_client: int = 4,
    seed: int = 0,
) -> Manifest:
    """Return the examples of a dataset of the hub, by its name, or of one in a folder.

    The columns are found by their types and usual names. With a `partition`, the training images get users, and the
    others have none. A dataset of one split without a column `split` is split 83/17 within each user.
    """
    datasets = import_optional("datasets")
    name = raw.as_posix()
    splits = _load_splits(name, config)
    table = datasets.concatenate_datasets(list(splits.values()))
    image = image or _find_image(name, table.features)
    label = label or _find_label(name, table.features)
    user = NO_USERS if partition else user or _find_user(name, table.features)
    _check_columns(name, table.column_names, {"image": image, "label": label, "user": user})
    labels, is_labelled = _read_labels(table, label)
    owners = np.full(len(table), "") if user == NO_USERS else np.array([str(value) for value in table[user]])
    files = table.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    manifest = Manifest(
        dataset=Path(name).name,
        source=DatasetImages(files, image),
        image=np.arange(len(table)),
        users=owners,
        split=_split_of_each(splits, owners if user != NO_USERS else None, seed),
        labels={"label": labels},
        columns={"image_id": np.arange(len(table))},
        notes={"source": name, "columns": f"image={image}, label={label}, user={user}"},
    )
    manifest = manifest.take(np.flatnonzero(is_labelled))
    manifest = manifest.add_notes({"examples without a label, left out": np.flatnonzero(~is_labelled)})
    if not partition:
        return manifest
    return partitions.give_users(manifest, partition, users, alpha, classes_per_client, seed)


@register_library("dataset", "hf")
def load_dataset(
    name: str,
    user: Annotated[str, "column of the users; none: a partitioner makes them; empty: one with a usual name"] = "",
    label: Annotated[str, "column of the labels; empty: the one whose type is a class"] = "",
    image: Annotated[str, "column of the images; empty: the one whose type is an image"] = "",
    size: Annotated[int, "pixels per side; 0: those of the images"] = 0,
    seed: Annotated[int, "seed of the split of a dataset that has none"] = 0,
) -> Population:
    """A dataset of the Hugging Face hub, or in a folder: `data=hf:NAME` or `data=hf:NAME:CONFIG`."""
    path, _, config = name.partition(":")
    manifest = read_manifest(Path(path), config=config, user=user, label=label, image=image, seed=seed)
    read = partial(_read_pixels, manifest.source, manifest.image, size or None)
    images: Any = LazyImages(read, (len(manifest), *read(0).shape))
    if np.prod(images.shape) <= MAX_BYTES_IN_MEMORY:
        images = images.pixels(np.arange(len(images)))
    users = np.where(manifest.users == "", manifest.split, manifest.users)
    columns = {"split": manifest.split, **manifest.columns}
    return Population.from_arrays(images, manifest.labels["label"], users, **columns)


def _read_pixels(source: Source, index: Ints, size: int | None, row: int) -> NDArray[np.uint8]:
    try:
        data = source.read(int(index[row]))
        return fit(data, size) if isinstance(data, np.ndarray) else decode(data, size).pixels_HWC
    except (UnreadableImage, FileNotFoundError) as problem:
        fix = "prepare the dataset with `manyeyes data prepare hf`, which leaves it out"
        raise ValueError(f"{source.name(int(index[row]))} of the dataset cannot be used ({problem}): {fix}") from None


def _load_splits(name: str, config: str) -> dict[str, Any]:
    """Return the dataset of each split that is known; of one without a known split, all of it as train."""
    folder, logger = Path(name), logging.getLogger("huggingface_hub")
    level = logger.level
    try:
        logger.setLevel(logging.CRITICAL)  # it reports every attempt, and the last one is an error
        loaded = _load(folder, config)
    except Exception as error:  # of the network, the hub, or a file in any format
        fix = "check the folder" if folder.exists() else "check the name and the connection, or give a folder"
        raise ValueError(f"{name} cannot be loaded as a dataset ({first_line(error).rstrip('.')}): {fix}") from error
    finally:
        logger.setLevel(level)
    splits = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    known = {split: part for split, part in splits.items() if split in SPLITS and len(part)}
    if not known and not any(map(len, splits.values())):
        raise ValueError(f"{name} has no examples: give another dataset")
    return known or splits


def _load(path: Path, config: str) -> Any:
    """Return what `datasets` reads from a folder or a parquet file, or downloads by its name."""
    datasets = import_optional("datasets")
    if any((path / file).is_file() for file in ("dataset_dict.json", "state.json")):
        return datasets.load_from_disk(str(path))
    if path.is_file():
        return datasets.load_dataset("parquet", data_files=str(path))
    return datasets.load_dataset(path.as_posix(), config or None)


def _split_of_each(splits: Mapping[str, Any], users: NDArray[np.str_] | None, seed: int) -> NDArray[np.str_]:
    """Return the split of each example: of a single one, those of its column `split`, or 83/17 within each user."""
    if len(splits) > 1 or "train" not in {SPLITS.get(split, "train") for split in splits}:
        return np.repeat([SPLITS.get(split, "train") for split in splits], [len(part) for part in splits.values()])
    (table,) = splits.values()
    if "split" in table.column_names:
        return np.array([SPLITS.get(str(value), "train") for value in table["split"]])
    return np.full(len(table), "train") if users is None else partitions.within_users(users, seed)


def _find_image(name: str, features: Mapping[str, Any]) -> str:
    images = [column for column, feature in features.items() if type(feature).__name__ == "Image"]
    if len(images) != 1:
        problem = f"several columns of images, {', '.join(images)}" if images else "no column of images"
        raise ValueError(f"{name} has {problem}, among {', '.join(features)}: name one with image=COLUMN")
    return images[0]


def _find_label(name: str, features: Mapping[str, Any]) -> str:
    candidates = [column for column, feature in features.items() if _class_names(feature)]
    candidates = candidates or [column for column in LABEL_NAMES if column in features]
    if len(candidates) != 1:
        problem = f"several columns of labels, {', '.join(candidates)}" if candidates else "no column of labels"
        raise ValueError(f"{name} has {problem}, among {', '.join(features)}: name one with label=COLUMN")
    return candidates[0]


def _find_user(name: str, features: Mapping[str, Any]) -> str:
    candidates = [column for column in USER_NAMES if column in features]
    if len(candidates) != 1:
        problem = f"several columns of users, {', '.join(candidates)}" if candidates else "no column of users"
        fix = "name one with user=COLUMN, or make users with partition=iid (manyeyes run: user=none partitioner=iid)"
        raise ValueError(f"{name} has {problem}, among {', '.join(features)}: {fix}")
    return candidates[0]


def _check_columns(name: str, known: Sequence[str], chosen: Mapping[str, str]) -> None:
    for option, column in chosen.items():
        if column not in known and (option, column) != ("user", NO_USERS):
            raise ValueError(f"{name} has no column {column!r}: set {option} to one of {', '.join(known)}")


def _class_names(feature: Any) -> list[str] | None:
    """Return the names of the classes of a column of classes, or of lists of them."""
    return getattr(getattr(feature, "feature", feature), "names", None)


def _read_labels(table: Any, label: str) -> tuple[Labels, NDArray[np.bool_]]:
    """Return the labels, and which examples have one: some test sets of the hub have -1."""
    values, classes = list(table[label]), _class_names(table.features[label])
    is_labelled = np.array([value is not None and value != -1 for value in values])
    if not is_labelled.any():
        raise ValueError(f"column {label!r} has no labels: choose another one with label=COLUMN")
    filler = values[int(is_labelled.argmax())]
    labels = make_labels(
        [value if known else filler for value, known in zip(values, is_labelled, strict=True)], classes
    )
    ids, num_classes = labels.nonzero()[1], len(labels.classes)
    if len(ids) and not 0 <= ids.min() <= ids.max() < num_classes:
        raise ValueError(
            f"column {label!r} has class {ids.max()} and there are {num_classes} classes: choose another one"
        )
    return labels, is_labelled


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images as `datasets` saves them to the disk."""
    datasets = import_optional("datasets")
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    examples = np.arange(len(population))
    assert not isinstance(population.labels, MultiLabels), "synthetic images have one class each"
    features = datasets.Features(
        image=datasets.Image(),
        label=datasets.ClassLabel(names=list(population.classes)),
        user=datasets.Value("string"),
        split=datasets.Value("string"),
    )
    rows = {
        "image": [{"bytes": encode(pixels), "path": None} for pixels in population.pixels(examples)],
        "label": population.labels.ids,
        "user": [population.user_name(user) for user in population.owners(examples)],
        "split": np.asarray(population.columns["split"]).tolist(),
    }
    datasets.Dataset.from_dict(rows, features).save_to_disk(str(raw))
