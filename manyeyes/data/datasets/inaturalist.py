"""iNaturalist-User-120k and iNaturalist-Geo: the released splits, or splits made as in Hsu et al. 2020, section 4.1."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data.datasets import released_splits as released
from manyeyes.data.datasets.released_splits import find_file
from manyeyes.data.manifest import Manifest, check_choice, files_by_name, keeps_synthetic_mark, write_synthetic_marker
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic, write_images
from manyeyes.data.tables import write_table
from manyeyes.io.parsing import first_line, parse_json

MAX_PER_CELL = {  # examples that a cell of the globe may have in each split; 0: a client is a user
    "user_120k": 0, "geo_30k": 30_000, "geo_10k": 10_000, "geo_3k": 3_000, "geo_1k": 1_000, "geo_300": 300,
    "geo_100": 100,
}  # fmt: skip
TRAIN_PER_CLASS, PUBLISHED_TRAIN_IMAGES = 100, 120_300
IMAGES = "train_val_images"
MAX_LEVEL = 30  # of a leaf cell of S2, about a centimetre wide

PAGE = "https://github.com/visipedia/inat_comp/tree/master/2017"
LICENSE = "non-commercial research and education; each image has its own"
Annotations = dict[str, NDArray[Any]]  # image_id, category, user ("" if unknown), latitude, longitude (nan if unknown)


@keeps_synthetic_mark
def read_manifest(
    raw: Path,
    *,
    split: str = "user_120k",
    splits: Path | None = None,
    construct: bool = False,
    seed: int = 0,
    per_class: int = TRAIN_PER_CLASS,
) -> Manifest:
    """Return one split, from its CSVs in `splits` (or `raw`) or made from the annotations; images are below `raw`."""
    check_choice("split of iNaturalist", split, MAX_PER_CELL)
    if construct:
        manifest = make_split(raw, make_rng(seed, "inaturalist"), per_class, MAX_PER_CELL[split])
    else:
        manifest = _read_split(splits or raw, split)
    if not (raw / IMAGES).is_dir():
        raise ValueError(f"{raw / IMAGES} does not exist: extract {IMAGES}.tar.gz into {raw}")
    paths = {Path(name).stem: f"{IMAGES}/{path}" for name, path in files_by_name(raw / IMAGES).items()}
    notes = {"split": split, "constructed": construct} | ({"seed": seed} if construct else {})
    located = [paths.get(name, "") for name in manifest.columns["image_id"].tolist()]
    return released.locate_images(manifest, raw, located, source=PAGE, license=LICENSE, **notes)


def make_split(raw: Path, rng: np.random.Generator, per_class: int, max_per_cell: int) -> Manifest:
    """Return `per_class` random training images of each class that has as many, and all validation images of these.

    A client is a user, or a cell of the globe if `max_per_cell` is not 0.
    """
    train, names = _read_annotations(raw, "train")
    val, _ = _read_annotations(raw, "val")
    chosen = released.sample_per_class(train["category"], per_class, rng, min_count=per_class)
    if not len(chosen):
        raise ValueError(f"No class in {raw} has {per_class} training images; the published files have 1,203 such")
    test = np.flatnonzero(np.isin(val["category"], train["category"][chosen]))
    clients = train["user"][chosen]
    if max_per_cell:
        clients = adaptive_cells(train["latitude"][chosen], train["longitude"][chosen], max_per_cell)
    columns = {name: np.concatenate([train[name][chosen], val[name][test]]) for name in train}
    categories, ids = np.unique(columns.pop("category"), return_inverse=True)
    del columns["user"]
    if nameless := [category for category in categories.tolist() if category not in names]:
        raise ValueError(f"train2017.json in {raw} has no name of category {nameless[0]}: download it again")
    labels = SingleLabels(ids, tuple(str(names[category]) for category in categories.tolist()))
    manifest = released.unlocated_manifest("inaturalist", clients, labels, columns)
    return released.drop_clientless(manifest)


def _read_split(folder: Path, split: str) -> Manifest:
    """Return a split of either release: a CSV for each split, or one CSV with a column for each split."""
    name, wide = f"federated_train_{split}.csv", "iNaturalist_train.csv"
    train = find_file(folder, name, name.replace("_geo", ""), wide, fix="download the released splits")
    if train.name == wide:
        manifest = released.read_released("inaturalist", train, train.with_name("iNaturalist_test.csv"), split)
    else:
        manifest = released.read_released("inaturalist", train, train.with_name("test.csv"))
    return released.drop_clientless(manifest)


def _read_annotations(raw: Path, split: str) -> tuple[Annotations, dict[int, str]]:
    """Return the annotations of the train or val images, joined with the location and user, and the category names."""
    annotated, located = _read_json(raw, f"{split}2017.json"), _read_json(raw, f"{split}2017_locations.json")
    try:
        location_of = {entry["id"]: entry for entry in located}
        category_of = {entry["image_id"]: entry["category_id"] for entry in annotated["annotations"]}
        images = annotated["images"]
        locations = [location_of.get(image["id"], {}) for image in images]
        users = [location.get("user_id") for location in locations]
        columns = {
            "image_id": np.array([Path(image["file_name"]).stem for image in images], np.str_),
            "category": np.array([category_of[image["id"]] for image in images], np.int64),
            "user": np.array(["" if user is None else str(user) for user in users], np.str_),
            "latitude": np.array([location.get("lat") for location in locations], np.float64),  # None becomes nan
            "longitude": np.array([location.get("lon") for location in locations], np.float64),
        }
        return columns, {entry["id"]: entry["name"] for entry in annotated["categories"]}
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        files = f"{split}2017.json and {split}2017_locations.json in {raw}"
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"{files} are not the published ones ({reason}): download them again") from error


def _read_json(raw: Path, name: str) -> Any:
    path = find_file(raw, name, fix="extract train_val2017.zip and inat2017_locations.zip there")
    try:
        return parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({first_line(error)}): download it again") from error


def adaptive_cells(
    latitude: ArrayLike, longitude: ArrayLike, max_examples: int, min_examples: float | None = None
) -> NDArray[np.str_]:
    """Return the token of each example's adaptive S2 cell, or "" without one (Hsu et al. 2020, section 4.2).

    The six faces of the globe are split into four, again and again, until no cell has more than `max_examples`; cells
    with fewer than `min_examples` (by default a hundredth of that) are left out. Examples at one point stay together.
    """
    if max_examples < 1:
        raise ValueError(f"max_examples per cell is {max_examples}: set it to at least 1")
    leaf = leaf_cells(latitude, longitude)
    cell = np.zeros_like(leaf)
    unassigned = np.flatnonzero(leaf)
    for level in range(MAX_LEVEL + 1):
        ids, index, counts = np.unique(ancestors(leaf[unassigned], level), return_inverse=True, return_counts=True)
        is_final = (counts <= max_examples)[index] | (level == MAX_LEVEL)
        cell[unassigned[is_final]] = ids[index[is_final]]
        unassigned = unassigned[~is_final]
    ids, index, counts = np.unique(cell, return_inverse=True, return_counts=True)
    is_sparse = counts < (0.01 * max_examples if min_examples is None else min_examples)
    tokens = np.array([f"{cell_id:016x}".rstrip("0") for cell_id in ids.tolist()], np.str_)  # "" for 0
    return np.where(is_sparse, "", tokens)[index]


def leaf_cells(latitude: ArrayLike, longitude: ArrayLike) -> NDArray[np.uint64]:
    """Return the leaf cell of each location in degrees, or 0 if it is missing or not on the globe."""
    from s2sphere import CellId, LatLng  # here, since `data prepare` imports the module of every dataset

    lat, lon = np.asarray(latitude, np.float64), np.asarray(longitude, np.float64)
    if lat.ndim != 1 or lat.shape != lon.shape:
        raise ValueError(f"latitude is {lat.shape} and longitude {lon.shape}: give one of each per example")
    is_valid = (np.abs(lat) <= 90) & (np.abs(lon) <= 360)  # false for NaN too
    lon = lon + 360 * (lon <= -180) - 360 * (lon > 180)  # -180 is where 180 is
    locations, index = np.unique(np.stack([lat[is_valid], lon[is_valid]], axis=1), axis=0, return_inverse=True)
    ids = [CellId.from_lat_lng(LatLng.from_degrees(*location)).id() for location in locations.tolist()]
    leaf = np.zeros(len(lat), np.uint64)
    leaf[is_valid] = np.array(ids, np.uint64)[index.reshape(-1)]
    return leaf


def ancestors(leaf: NDArray[np.uint64], level: int) -> NDArray[np.uint64]:
    """Return the cell of one level around each leaf: its first 3 + 2 `level` bits, then a one and zeros."""
    lowest_bit = np.uint64(1 << 2 * (MAX_LEVEL - level))
    return np.asarray(leaf & ~np.uint64(2 * int(lowest_bit) - 1) | lowest_bit)


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images as iNaturalist-2017 with its released splits; some images and locations are missing."""
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    assert isinstance(population.labels, SingleLabels), "synthetic images have one class each"
    categories, classes = population.labels.ids, population.classes
    names = [hashlib.md5(name.encode()).hexdigest() for name in np.asarray(population.columns["image_id"]).tolist()]
    files = [f"{IMAGES}/Synthetic/{classes[c]}/{name}.jpg" for c, name in zip(categories, names, strict=True)]
    write_images(population, (None if i % 50 == 7 else raw / file for i, file in enumerate(files)))
    is_train = np.asarray(population.columns["split"]) == "train"
    _write_annotations(raw, "train", population, files, np.flatnonzero(is_train).tolist())
    _write_annotations(raw, "val", population, files, np.flatnonzero(~is_train).tolist())
    _write_splits(raw, np.unique(categories[is_train], return_counts=True)[1], synthetic.seed)


def _write_annotations(raw: Path, split: str, population: Population, files: list[str], rows: list[int]) -> None:
    """Write the two JSON files of the train or val images, with lists in different orders, as only ids join them."""
    categories = population.labels.targets(np.arange(len(population))).tolist()
    annotations = {
        "images": [{"id": i, "file_name": files[i]} for i in rows],
        "annotations": [{"image_id": i, "category_id": categories[i]} for i in rows[::-1]],
        "categories": [{"id": c, "name": name} for c, name in enumerate(population.classes)],
    }
    lat, lon = (
        [None if i % 40 == 3 else x for i, x in enumerate(np.asarray(population.columns[name]).tolist())]
        for name in ("latitude", "longitude")
    )
    users = population.user_ids[population.owners(rows)].tolist()
    locations = [{"id": i, "lat": lat[i], "lon": lon[i], "user_id": user} for i, user in zip(rows, users, strict=True)]
    (raw / f"{split}2017.json").write_text(json.dumps(annotations))
    (raw / f"{split}2017_locations.json").write_text(json.dumps(locations[::-1]))


def _write_splits(raw: Path, class_counts: Ints, seed: int) -> None:
    """Write the splits as CSVs, with lower limits per class and cell if there are few images."""
    per_class = min(TRAIN_PER_CLASS, int(np.median(class_counts)))
    num_images = per_class * int((class_counts >= per_class).sum())
    for split, limit in MAX_PER_CELL.items():
        scaled_limit = max(2, limit * num_images // PUBLISHED_TRAIN_IMAGES) if limit else 0
        manifest = make_split(raw, make_rng(seed, "inaturalist stand-in"), per_class, scaled_limit)
        ids = manifest.labels["class"].targets(np.arange(len(manifest)))
        names = np.array(manifest.labels["class"].classes)[ids]
        rows = list(zip(manifest.users, manifest.columns["image_id"], ids, names, strict=True))
        folder, header = raw / ("inaturalist-geo" if limit else "inaturalist-user-120k"), ("image_id", "class", "label")
        write_table(folder / f"federated_train_{split}.csv", ("user_id", *header), [row for row in rows if row[0]])
        write_table(folder / "test.csv", header, [row[1:] for row in rows if not row[0]])
