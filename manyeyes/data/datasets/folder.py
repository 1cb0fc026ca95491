"""Your own data: images in DIR/<user>/<class>/, or a table (CSV, parquet) of path, user and label.

Data in arrays needs no files: a `Listing` is a source, users, a split and labels. MNIST by writer, as QMNIST gives it:

    split = partition.within_users(writer, seed=0)
    labels = {"digit": SingleLabels(digit, tuple("0123456789"))}
    images = np.repeat(grey[..., None], 3, axis=-1)  # [N, 28, 28] to [N, 28, 28, 3]
    mnist = Listing("mnist", Pixels(images), np.arange(len(images)), writer.astype(str), split, labels)
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from manyeyes.core.population import Labels, MultiLabels, Population, SingleLabels
from manyeyes.data import partition
from manyeyes.data.manifest import Files, Manifest

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
NEEDED, OPTIONAL = ("path", "user", "label"), ("split", "lat", "lon")
TABLES = ("images.csv", "images.parquet")
PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Row:
    """What a folder or a line of a table says of one image."""

    place: str  # where it says so, for a person who has to mend it
    path: str
    user: str
    labels: tuple[str, ...]
    split: str = ""
    lat: float = math.nan
    lon: float = math.nan


def read_manifest(raw: Path, *, split: str = "users", seed: int = 0) -> Manifest:
    """The images of a folder or a table, or of a folder with its images.csv or images.parquet.

    Without a split column they are split by `users` (80/10/10) or `within` them (83/17).
    """
    raw = next((table for table in map(Path(raw).joinpath, TABLES) if table.is_file()), Path(raw))
    if split not in ("users", "within"):
        raise ValueError(f"the split is {split!r}: give 'users' or 'within'")
    if not raw.exists():
        raise ValueError(f"there is no {raw}: give a folder of <user>/<class>/ folders, or a .csv or .parquet")
    if raw.is_dir():
        root, multi, (rows, skipped) = raw, False, _tree(raw)
    else:
        root, (rows, multi), skipped = raw.parent, _table(raw), 0
    if not rows:
        raise ValueError(
            f"{raw} has no images: put them in <user>/<class>/ folders, or give a table with a row for each"
        )
    users = np.array([row.user for row in rows])
    parts = np.array([row.split for row in rows])
    given = bool(parts[0])
    if not given:
        parts = partition.by_users(users, seed) if split == "users" else partition.within_users(users, seed)
    columns: dict[str, NDArray[Any]] = {"image_id": np.array([row.path for row in rows])}
    if any(not math.isnan(row.lat) for row in rows):
        columns["latitude"] = np.array([row.lat for row in rows])
        columns["longitude"] = np.array([row.lon for row in rows])
    notes = {"source": str(raw), "split": "given" if given else split, "seed": seed, "skipped_files": skipped}
    labels = {"label": _labels([row.labels for row in rows], multi)}
    source = Files(root, [row.path for row in rows])
    return Manifest(raw.stem, source, np.arange(len(rows)), users, parts, labels, columns, notes)


def write_synthetic(population: Population, raw: Path, kind: str = "tree") -> Path:
    """Write any population as PNG files, in folders (`tree`) or with a table (`csv`, `parquet`); gives what to list."""
    if kind not in ("tree", "csv", "parquet"):
        raise ValueError(f"there is no folder kind called {kind!r}: give tree, csv or parquet")
    if kind == "tree" and population.labels.multi:
        raise ValueError("an image in a class folder has one label: write several as a csv or parquet table")
    every = np.arange(len(population))
    position, ids = population.labels.nonzero()
    names = [[population.classes[i] for i in some] for some in np.split(ids, np.searchsorted(position, every[1:]))]
    owners = [population.user_name(user) for user in population.owners(every)]
    columns: dict[str, list[Any]] = {"path": [], "user": owners, "label": names}
    raw = Path(raw)
    for example in every:
        path = Path(owners[example], names[example][0] if kind == "tree" else "", f"{example:06d}.png")
        (raw / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(population.pixels(every[example : example + 1])[0]).save(raw / path)
        columns["path"].append(str(path))
    if kind == "tree":
        return raw
    for name, column in (("split", "split"), ("lat", "latitude"), ("lon", "longitude")):
        if column in population.columns:
            columns[name] = np.asarray(population.columns[column]).tolist()
    table = raw / f"images.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(columns), table)
    else:
        columns["label"] = ["|".join(some) for some in names]
        with table.open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows([columns, *zip(*columns.values(), strict=True)])
    return table


def _tree(root: Path) -> tuple[list[Row], int]:
    """The images two folders down, and how many other files there are; hidden ones are passed over."""
    rows, skipped = [], 0
    for user in _visible(root):
        for label in _visible(user):
            for path in _visible(label):
                if path.suffix.lower() not in SUFFIXES or not path.is_file():
                    skipped += 1
                elif not _is_text(str(path.relative_to(root))):
                    raise ValueError(f"{str(path)!a} has a name that is not UTF-8: rename it")
                else:
                    rows.append(Row(str(path), path.relative_to(root).as_posix(), user.name, (label.name,)))
            if label.is_file():
                if label.suffix.lower() in SUFFIXES:
                    raise ValueError(f"{label} lies in no class folder: put images into {root}/<user>/<class>/")
                skipped += 1
        skipped += user.is_file()
    return rows, skipped


def _is_text(name: str) -> bool:
    """Not where Python stands in for bytes of a name that are none of UTF-8's."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith((".", "__"))) if folder.is_dir() else []


def _table(path: Path) -> tuple[list[Row], bool]:
    """The rows of a table, and whether images may have several labels."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{path} is neither a folder nor a .csv or .parquet table")
    try:
        rows, multi = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read ({error}): save it as CSV in UTF-8, with every quote closed") from None
    missing = [row for row in rows if not (path.parent / row.path).is_file()]
    if missing:
        more = f", and {len(missing) - 1} more are missing" if len(missing) > 1 else ""
        raise ValueError(f"{missing[0].place}: there is no file {path.parent / missing[0].path}{more}")
    if len({bool(row.split) for row in rows}) > 1:
        empty = next(row for row in rows if not row.split)
        raise ValueError(f"{empty.place}: the split is empty and other rows have one: give train, val or test")
    return rows, multi


def _csv(path: Path) -> tuple[list[Row], bool]:
    with path.open(newline="", encoding="utf-8-sig") as opened:
        table = csv.DictReader(opened, restkey="")
        _check_columns(path, table.fieldnames or ())
        rows = []
        for cells in table:
            place = f"{path.name}, line {table.line_num}"
            if "" in cells or None in cells.values():
                raise ValueError(f"{place}: it has not one cell for each of {', '.join(table.fieldnames or ())}")
            rows.append(_row(place, cells | {"label": [label.strip() for label in cells["label"].split("|")]}))
    return rows, any(len(row.labels) > 1 for row in rows)


def _parquet(path: Path) -> tuple[list[Row], bool]:
    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}") from None
    _check_columns(path, table.column_names)
    label = table.column("label")
    multi = pa.types.is_list(label.type) or pa.types.is_large_list(label.type)
    rows = [
        _row(f"{path.name}, row {i}", cells if multi else cells | {"label": [cells["label"]]})
        for i, cells in enumerate(table.to_pylist(), 1)
    ]
    return rows, multi


def _check_columns(path: Path, found: Sequence[str]) -> None:
    wrong = [name for name in found if name not in (*NEEDED, *OPTIONAL)]
    if wrong:
        raise ValueError(f"{path.name} has a column {wrong[0]!r}: it may have {', '.join((*NEEDED, *OPTIONAL))}")
    lacking = [name for name in NEEDED if name not in found]
    if lacking or ("lat" in found) != ("lon" in found):
        raise ValueError(f"{path.name} has no column {(lacking or ['lat or lon'])[0]}: it has {', '.join(found)}")


def _row(place: str, cells: Mapping[str, Any]) -> Row:
    """One row, or what is wrong with it."""
    text = {name: "" if cells.get(name) is None else str(cells[name]).strip() for name in ("path", "user", "split")}
    labels = tuple("" if label is None else str(label) for label in cells["label"] or ())
    for name in ("path", "user"):
        if not text[name]:
            raise ValueError(f"{place}: the {name} is empty")
    if not labels or "" in labels:
        raise ValueError(f"{place}: the label is empty")
    if text["split"] not in ("", *PARTS):
        raise ValueError(f"{place}: the split is {text['split']!r}: give train, val or test")
    degrees = {name: _degrees(place, name, cells.get(name)) for name in ("lat", "lon")}
    return Row(place, text["path"], text["user"], labels, text["split"], **degrees)


def _degrees(place: str, name: str, cell: object) -> float:
    try:
        return float(str(cell)) if cell not in (None, "") else math.nan
    except ValueError:
        raise ValueError(f"{place}: {name} is {cell!r}: give degrees, or nothing") from None


def _labels(rows: list[tuple[str, ...]], multi: bool) -> Labels:
    """Labels of classes in the order of their names, or of their numbers where all are numbers."""
    names = sorted({name for row in rows for name in row})
    classes = tuple(sorted(names, key=int) if all(name.isdecimal() for name in names) else names)
    ids = {name: i for i, name in enumerate(classes)}
    if multi:
        return MultiLabels.from_lists([[ids[name] for name in row] for row in rows], classes)
    return SingleLabels(np.array([ids[row[0]] for row in rows]), classes)
