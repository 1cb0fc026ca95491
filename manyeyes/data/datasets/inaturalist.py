"""iNaturalist-User-120k and iNaturalist-Geo, from the released splits or anew (Hsu et al. 2020, section 4.1)."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels
from manyeyes.core.rng import make_rng
from manyeyes.data.datasets import s2_cells as s2
from manyeyes.data.datasets.released_splits import (
    Entries,
    Strings,
    find_file,
    make_manifest,
    only_clients,
    read_released,
    sample_per_class,
    write_table,
)
from manyeyes.data.download.fetch import FEDERATED_VISION, RemoteFile
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

# Each split, and how many examples a cell of the globe may have in it; those of one user are together in the first.
SPLITS = {
    "user_120k": 0, "geo_30k": 30_000, "geo_10k": 10_000, "geo_3k": 3_000, "geo_1k": 1_000, "geo_300": 300,
    "geo_100": 100,
}  # fmt: skip
PER_CLASS, PUBLISHED = 100, 120_300  # training images of a class, and of all
NOBODY = ("NA", "")  # the user of an example that is not in a split
IMAGES = "train_val_images"

_TFF = "https://storage.googleapis.com/tff-datasets-public/"
_INAT = "https://ml-inat-competition-datasets.s3.amazonaws.com/2017/"
RELEASED = (
    RemoteFile(FEDERATED_VISION + "inaturalist-user-120k.zip"),
    RemoteFile(FEDERATED_VISION + "inaturalist-geo.zip"),
)
RELEASED_AS_COLUMNS = (
    RemoteFile(_TFF + "iNaturalist_train.csv", "63d5a41699434bc2b13f5853f3764c18"),
    RemoteFile(_TFF + "iNaturalist_test.csv", "bcf08a5a740ee76dac4e5af668081891"),
)
ANNOTATIONS = (
    RemoteFile(_INAT + "train_val2017.zip"),
    RemoteFile(_INAT + "inat2017_locations.zip", "afc1956f9a100b165b89f3923d040912"),
)
PHOTOGRAPHS = RemoteFile(_INAT + "train_val_images.tar.gz", "7c784ea5e424efaec655bd392f87301f")  # 186 GB
NOTES = {
    "source": "https://github.com/visipedia/inat_comp/tree/master/2017",
    "licence": "non-commercial research and education; each photograph has its own",
}


@dataclass(frozen=True, eq=False)
class Annotated:
    """What iNaturalist-2017 says of the images of one of its two parts."""

    files: Strings
    categories: Ints
    latitude: NDArray[np.float64]  # nan where it is not known
    longitude: NDArray[np.float64]
    users: Strings  # "" where it is not known
    names: dict[int, str]  # of the categories


def read_manifest(
    raw: Path,
    *,
    split: str = "user_120k",
    splits: Path | None = None,
    construct: bool = False,
    seed: int = 0,
    per_class: int = PER_CLASS,
) -> Manifest:
    """One split, from its CSVs in `splits` (or `raw`) or constructed from the annotations; images below `raw`."""
    if split not in SPLITS:
        raise ValueError(f"iNaturalist has no split {split!r}; give one of {', '.join(SPLITS)}.")
    entries = constructed(raw, split, seed, per_class) if construct else _released(splits or raw, split)
    where = _photographs(raw / IMAGES)
    paths = [where.get(name, "") for name in entries.image_ids.tolist()]
    notes = {**NOTES, "split": split, "constructed": construct} | ({"seed": seed} if construct else {})
    return make_manifest("inaturalist", raw, entries, paths, notes)


def constructed(raw: Path, split: str, seed: int, per_class: int = PER_CLASS) -> Entries:
    """Classes with fewer training images than `per_class` are cut, so many drawn of the others, and shared out.

    The test set are the validation images of the classes that are left.
    """
    train, val = _annotated(raw, "train"), _annotated(raw, "val")
    chosen = sample_per_class(train.categories, per_class, make_rng(seed, "inaturalist"), least=per_class)
    if not len(chosen):
        raise ValueError(f"No class in {raw} has {per_class} training images; the published files have 1,203 such.")
    tested = np.flatnonzero(np.isin(val.categories, train.categories[chosen]))
    users = train.users[chosen]
    if SPLITS[split]:
        users = s2.cells(train.latitude[chosen], train.longitude[chosen], most=SPLITS[split]).tokens
    ids, labels = np.unique(np.concatenate([train.categories[chosen], val.categories[tested]]), return_inverse=True)
    entries = Entries(
        _stems(np.concatenate([train.files[chosen], val.files[tested]])),
        np.concatenate([users, np.full(len(tested), "")]),
        np.repeat(["train", "test"], [len(chosen), len(tested)]),
        SingleLabels(labels, tuple(train.names[i] for i in ids.tolist())),
        {
            "latitude": np.concatenate([train.latitude[chosen], val.latitude[tested]]),
            "longitude": np.concatenate([train.longitude[chosen], val.longitude[tested]]),
        },
    )
    return only_clients(entries, NOBODY)


def _released(folder: Path, split: str) -> Entries:
    """From either release: one CSV for each split, or one with a column for each split."""
    name = f"federated_train_{split}.csv"
    if train := find_file(folder, name, name.replace("_geo", "")):
        return only_clients(read_released(train, train.with_name("test.csv")), NOBODY)
    if train := find_file(folder, "iNaturalist_train.csv"):
        return only_clients(read_released(train, train.with_name("iNaturalist_test.csv"), split), NOBODY)
    raise ValueError(f"Folder {folder} has neither {name} nor iNaturalist_train.csv; download the released splits.")


def _photographs(folder: Path) -> dict[str, str]:
    """Where each image is, by its name without .jpg, which is its id in the released splits."""
    if not folder.is_dir():
        raise ValueError(f"Folder {folder} does not exist; extract {PHOTOGRAPHS.name} into {folder.parent}.")
    found = {}
    for below, _, files in os.walk(folder, followlinks=True):
        inside = Path(below).relative_to(folder.parent).as_posix()
        found.update({name.removesuffix(".jpg"): f"{inside}/{name}" for name in files if name.endswith(".jpg")})
    return found


def _stems(files: Strings) -> Strings:
    return np.array([Path(name).stem for name in files.tolist()], dtype=np.str_)


def _annotated(raw: Path, part: str) -> Annotated:
    """The annotations of one part, joined by image with where and by whom each was taken."""
    told, located = _json(raw, f"{part}2017.json"), _json(raw, f"{part}2017_locations.json")
    try:
        places = {entry["id"]: entry for entry in located}
        category = {entry["image_id"]: entry["category_id"] for entry in told["annotations"]}
        images = told["images"]
        taken = [places.get(image["id"], {}) for image in images]
        return Annotated(
            np.array([image["file_name"] for image in images], dtype=np.str_),
            np.array([category[image["id"]] for image in images], np.int64),
            np.array([place.get("lat") for place in taken], np.float64),  # None becomes nan
            np.array([place.get("lon") for place in taken], np.float64),
            np.array(["" if place.get("user_id") is None else str(place["user_id"]) for place in taken], dtype=np.str_),
            {entry["id"]: entry["name"] for entry in told["categories"]},
        )
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{part}2017.json and {part}2017_locations.json in {raw} are not as iNaturalist-2017 publishes them "
            f"({error!r}); fetch them anew."
        ) from error


def _json(raw: Path, name: str) -> Any:
    path = find_file(raw, name)
    if path is None:
        raise ValueError(f"Folder {raw} has no {name}; extract {' and '.join(r.name for r in ANNOTATIONS)} there.")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"File {path} is no JSON ({error}); fetch it anew.") from error


def write_synthetic(world: SyntheticImages, raw: Path) -> None:
    """Write a procedural world as iNaturalist-2017, with both releases of its splits and with some images missing."""
    people = make_synthetic(world)
    assert isinstance(people.labels, SingleLabels)
    stems = [hashlib.md5(name.encode()).hexdigest() for name in np.asarray(people.columns["image_id"]).tolist()]
    lost = np.arange(len(people)) % 40 == 3  # nobody knows the place of these
    told = Annotated(
        np.array(
            [f"{IMAGES}/World/{people.classes[c]}/{s}.jpg" for c, s in zip(people.labels.ids, stems, strict=True)]
        ),
        people.labels.ids,
        np.where(lost, np.nan, np.asarray(people.columns["latitude"])),
        np.where(lost, np.nan, np.asarray(people.columns["longitude"])),
        np.repeat(people.user_ids, people.num_examples).astype(str),
        dict(enumerate(people.classes)),
    )
    for example, file in enumerate(told.files):
        if example % 50 != 7:  # these are missing
            (raw / file).parent.mkdir(parents=True, exist_ok=True)
            pixels = people.pixels(np.array([example]))[0]
            (raw / file).write_bytes(simplejpeg.encode_jpeg(pixels, quality=95))
    train = np.asarray(people.columns["split"]) == "train"
    _write_annotations(raw, "train", told, np.flatnonzero(train))
    _write_annotations(raw, "val", told, np.flatnonzero(~train))
    _write_released(raw, told, train, world.seed)


def _write_annotations(raw: Path, part: str, told: Annotated, rows: Ints) -> None:
    """The two JSON files of one part; their lists are in different orders, as only ids must join them."""
    images = [{"id": row, "file_name": str(told.files[row])} for row in rows.tolist()]
    annotations = [{"image_id": row, "category_id": int(told.categories[row])} for row in rows[::-1].tolist()]
    categories = [{"id": number, "name": name, "supercategory": "World"} for number, name in told.names.items()]
    places = []
    for row in np.roll(rows, 1).tolist():
        lat, lon = (None if np.isnan(x[row]) else float(x[row]) for x in (told.latitude, told.longitude))
        places.append({"id": row, "lat": lat, "lon": lon, "date": "2017-04-05", "user_id": int(told.users[row])})
    content = {"images": images, "annotations": annotations, "categories": categories}
    (raw / f"{part}2017.json").write_text(json.dumps(content))
    (raw / f"{part}2017_locations.json").write_text(json.dumps(places))


def _write_released(raw: Path, told: Annotated, train: NDArray[np.bool_], seed: int) -> None:
    """Both releases, with fewer images a class and a cell where the world is small."""
    of_train = np.flatnonzero(train)
    counts = np.unique(told.categories[of_train], return_counts=True)[1]
    per_class = min(PER_CLASS, int(np.median(counts)))
    g = make_rng(seed, "inaturalist stand-in")
    chosen = of_train[sample_per_class(told.categories[of_train], per_class, g, least=per_class)]
    classes = np.unique(told.categories[chosen])

    def rows(examples: Ints) -> list[tuple[str, int, str]]:
        numbers = np.searchsorted(classes, told.categories[examples]).tolist()
        labels = [told.names[category] for category in told.categories[examples].tolist()]
        return list(zip(_stems(told.files[examples]).tolist(), numbers, labels, strict=True))

    header = ("image_id", "class", "label")
    tested = rows(np.flatnonzero(~train & np.isin(told.categories, classes)))
    clients = {"user_120k": told.users[chosen]}
    for split, most in SPLITS.items():
        if most:
            scaled = max(2, most * len(chosen) // PUBLISHED)
            tokens = s2.cells(told.latitude[chosen], told.longitude[chosen], scaled).tokens
            clients[split] = np.where(tokens == "", "NA", tokens)
    for split, users in clients.items():
        folder = raw / ("inaturalist-geo" if SPLITS[split] else "inaturalist-user-120k")
        held = [(user, *row) for user, row in zip(users.tolist(), rows(chosen), strict=True) if user != "NA"]
        write_table(folder / f"federated_train_{split}.csv", ("user_id", *header), held)
        write_table(folder / "test.csv", header, tested)
    wide = [(*row, *users) for row, users in zip(rows(chosen), zip(*clients.values(), strict=True), strict=True)]
    write_table(raw / "columns" / "iNaturalist_train.csv", (*header, *clients), wide)
    write_table(raw / "columns" / "iNaturalist_test.csv", header, tested)
