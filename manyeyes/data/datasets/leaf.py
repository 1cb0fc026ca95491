"""FEMNIST and CelebA as LEAF (Caldas et al. 2018) writes them: JSON files with the examples of each user."""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import SingleLabels
from manyeyes.data import partition
from manyeyes.data.manifest import Files, Manifest, Pixels, keeps_synthetic_mark, write_synthetic_marker
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic, write_images
from manyeyes.io.parsing import first_line, parse_json

CLASSES = {  # of each dataset, in the order of LEAF's numbers
    "femnist": tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    "celeba": ("not smiling", "smiling"),
}
SIDE = 28  # pixels of FEMNIST
FOLDERS = {"train": "train", "test": "test", "all_data": ""}  # of LEAF, and their split
IMAGES = "img_align_celeba"
PAGE = "https://leaf.cmu.edu"
Example = tuple[str, str, Any, Any]  # user, split ("" where LEAF made none), x, y


@keeps_synthetic_mark
def read_manifest(raw: Path, *, name: str = "femnist", seed: int = 0) -> Manifest:
    """Return the examples of all JSON files in LEAF's folders train and test, or all_data, or in `raw` itself.

    Without train and test, the examples of each user are split 83/17.
    """
    examples = [example for path, split in _json_files(raw) for example in _read(path, split)]
    if not examples:
        raise ValueError(f"{raw} has JSON files without examples: run LEAF's preprocess.sh again")
    users, splits, x, y = zip(*examples, strict=True)
    owners, split = np.array(users), np.array(splits)
    if not all(splits):
        split = partition.within_users(owners, seed)
    ids = np.asarray(y)
    if ids.dtype.kind not in "iu" or not 0 <= ids.min() <= ids.max() < len(CLASSES[name]):
        raise ValueError(f"{raw} has labels other than 0 to {len(CLASSES[name]) - 1}: give LEAF's files of {name}")
    return Manifest(
        dataset=name,
        source=_pixels(raw, x) if name == "femnist" else Files(_images_folder(raw), [str(file) for file in x]),
        image=np.arange(len(ids)),
        users=owners,
        split=split,
        labels={"label": SingleLabels(ids, CLASSES[name])},
        columns={"image_id": np.arange(len(ids))},
        notes={"source": PAGE},
    )


def _json_files(raw: Path) -> list[tuple[Path, str]]:
    """Return the files to read and their split: those of train and test if both exist, else all of one folder."""
    for root in (raw, raw / "data"):
        tables = {folder: sorted((root / folder).glob("*.json")) for folder in FOLDERS}
        chosen = ("train", "test") if tables["train"] and tables["test"] else ("all_data",)
        files = [(path, FOLDERS[folder]) for folder in chosen for path in tables[folder]]
        if files := files or [(path, "") for path in sorted(root.glob("*.json"))]:
            return files
    raise ValueError(
        f"{raw} has no JSON files of LEAF: run its preprocess.sh, and give the folder `data` that it writes"
    )


def _read(path: Path, split: str) -> Iterator[Example]:
    try:
        users = parse_json(path.read_bytes())["user_data"]
        for user, data in users.items():
            yield from ((user, split, x, y) for x, y in zip(data["x"], data["y"], strict=True))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a JSON file of LEAF ({first_line(error)}): run preprocess.sh again") from error


def _pixels(raw: Path, x: tuple[Any, ...]) -> Pixels:
    try:
        grey = np.array(x, np.float32).reshape(-1, SIDE, SIDE)
    except (ValueError, TypeError):
        raise ValueError(
            f"{raw} has images of other than {SIDE * SIDE} numbers: give LEAF's files of femnist"
        ) from None
    return Pixels(np.repeat(_as_uint8(grey)[..., None], 3, axis=3), "femnist image")


def _as_uint8(grey: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.round(255 * grey.clip(0, 1)).astype(np.uint8)


def _images_folder(raw: Path) -> Path:
    for folder in (raw / IMAGES, raw / "raw" / IMAGES, raw / "data" / "raw" / IMAGES):
        if folder.is_dir():
            return folder
    raise ValueError(f"{raw / IMAGES} does not exist: put the images of CelebA there")


def write_synthetic(synthetic: SyntheticImages, raw: Path, name: str) -> None:
    """Write synthetic images as LEAF's all_data; those of CelebA are files."""
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    examples = np.arange(len(population))
    labels = population.labels.nonzero()[1] % len(CLASSES[name])
    if name == "celeba":
        x: list[Any] = [f"{example:06d}.jpg" for example in examples]
        write_images(population, [raw / IMAGES / file for file in x])
    else:
        step = -(-synthetic.size // SIDE)
        grey = population.pixels(examples).mean(axis=3)[:, ::step, ::step] / 255
        padded = np.zeros((len(examples), SIDE, SIDE))
        padded[:, : grey.shape[1], : grey.shape[2]] = grey[:, :SIDE, :SIDE]
        x = padded.reshape(len(examples), -1).round(4).tolist()
    users = {population.user_name(user): population.examples(user).tolist() for user in range(len(population.user_ids))}
    data = {user: {"x": [x[e] for e in rows], "y": labels[rows].tolist()} for user, rows in users.items()}
    (raw / "all_data").mkdir(parents=True, exist_ok=True)
    content = {"users": [*users], "num_samples": [len(rows) for rows in users.values()], "user_data": data}
    (raw / "all_data" / "all_data_0.json").write_text(json.dumps(content))
