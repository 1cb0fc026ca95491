"""Your own data: images in DIR/<user>/<class>/, or a table (CSV, parquet) of path, user and label."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from manyeyes.core.population import Labels, MultiLabels, SingleLabels
from manyeyes.data.decode import KNOWN_EXTENSIONS
from manyeyes.data.manifest import (
    SYNTHETIC_MARKER,
    Files,
    Manifest,
    check_choice,
    keeps_synthetic_mark,
    write_synthetic_marker,
)
from manyeyes.data.partition import by_users, give_users, within_users
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic
from manyeyes.data.tables import check_columns, csv_rows
from manyeyes.io.parsing import named_if_damaged

REQUIRED_COLUMNS, OPTIONAL_COLUMNS = ("path", "user", "label"), ("split", "lat", "lon")
TABLES = ("images.csv", "images.parquet")
MAX_EXACT_DIGITS = 15  # of a whole number that is also a float
OTHER_NAMES = ("row", "image_id", "latitude", "longitude")  # that columns of a store have already
SPLITS: dict[str, Callable[..., NDArray[np.str_]]] = {"users": by_users, "per_user": within_users}


@dataclass(frozen=True)
class Row:
    """One image, as a folder or a row of a table describes it."""

    origin: str  # the file, or the table and its line, for messages
    path: str
    user: str
    labels: Sequence[str]
    multi: bool = False  # whether the table allows several labels
    split: str = ""
    lat: float = math.nan
    lon: float = math.nan
    extra: Mapping[str, Any] = field(default_factory=dict)  # the cells of further columns


@keeps_synthetic_mark
def read_manifest(
    raw: Path,
    *,
    split: str = "users",
    partition: str = "",
    users: int = 100,
    alpha: float = 0.1,
    classes_per_client: int = 4,
    seed: int = 0,
) -> Manifest:
    """Return the images of a folder or a table, or of a folder with its images.csv or images.parquet.

    Without a split column, split=users splits the users 80/10/10 and split=per_user the images of each user 83/17. With a
    `partition`, the training images get new users, and are split 83/17 if there is no split column.
    """
    raw = next((table for table in map(Path(raw).joinpath, TABLES) if table.is_file()), Path(raw))
    check_choice("split", split, SPLITS)
    rows, skipped = _read_folder(raw) if raw.is_dir() else (_read_table(raw), [])
    if not rows:
        raise ValueError(f"{raw} has no images: put them in <user>/<class>/ folders, or give a table with their rows")
    owners = np.array([row.user for row in rows])
    splits, notes = np.array([row.split for row in rows]), dict[str, Any](split="given")
    if not rows[0].split and partition:
        splits, notes = np.full(len(rows), "train"), {"split": "per_user"}
    elif not rows[0].split:
        splits, notes = SPLITS[split](owners, seed), {"split": split, "seed": seed}
    manifest = Manifest(
        dataset=raw.stem,
        source=Files(raw if raw.is_dir() else raw.parent, [row.path for row in rows]),
        image=np.arange(len(rows)),
        users=owners,
        split=splits,
        labels={"label": _labels(rows)},
        columns=_columns(rows),
        notes={"source": str(raw), **notes},
        skipped=tuple(skipped),
    )
    return give_users(manifest, partition, users, alpha, classes_per_client, seed) if partition else manifest


def _columns(rows: list[Row]) -> dict[str, NDArray[Any]]:
    columns = {"image_id": np.array([row.path for row in rows])}
    if any(not math.isnan(row.lat) for row in rows):
        columns |= {"latitude": np.array([row.lat for row in rows]), "longitude": np.array([row.lon for row in rows])}
    return columns | {name: as_column([row.extra[name] for row in rows]) for name in rows[0].extra}


def as_column(cells: Sequence[Any]) -> NDArray[Any]:
    """Return the cells of a column as numbers if all of them are, with NaN for an empty one, and else as text."""
    if all(isinstance(cell, Real) for cell in cells):
        return np.array(cells)
    texts = ["" if cell is None else str(cell) for cell in cells]
    if any(text.isdecimal() and (len(text) > MAX_EXACT_DIGITS or str(int(text)) != text) for text in texts):
        return np.array(texts)  # codes such as 007, and not numbers
    try:
        values = np.array([float(text) if text else math.nan for text in texts])
    except ValueError:
        return np.array(texts)
    return values.astype(np.int64) if all(text.isdecimal() for text in texts) else values


def _read_folder(root: Path) -> tuple[list[Row], list[tuple[str, str]]]:
    """Return the images two folders down, and why each other file is not one."""
    rows, skipped = [], list[tuple[str, str]]()
    for path in _visible_files(root, depth=3):
        name = path.relative_to(root).as_posix()
        user, *label = name.split("/")[:-1] or [""]
        if not path.is_file():
            skipped.append(("folder in a class folder", name))
        elif path.suffix.lower() not in KNOWN_EXTENSIONS:
            skipped.append(("not an image file", name))
        elif not user:
            skipped.append(("image outside of user folders", name))
        elif not label:
            raise ValueError(f"{path} is in no class folder: put images into {root}/<user>/<class>/")
        elif name.encode(errors="replace").decode() != name:
            raise ValueError(f"{str(path)!a} has a name that is not UTF-8: rename it")
        else:
            rows.append(Row(str(path), name, user, label))
    return rows, skipped


def _visible_files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files of at most `depth` levels, and the folders at the last one; hidden ones are left out."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__")) or path.name == SYNTHETIC_MARKER:
            continue
        if depth > 1 and path.is_dir():
            yield from _visible_files(path, depth - 1)
        else:
            yield path


def _read_table(path: Path) -> list[Row]:
    if not path.exists():
        raise ValueError(f"{path} does not exist: give a folder of <user>/<class>/ folders, or a .csv or .parquet")
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path} is neither a folder nor a .csv or .parquet table")
    rows = readers[path.suffix.lower()](path)
    missing = [row for row in rows if not (path.parent / row.path).is_file()]
    if missing:
        more = f", and {len(missing) - 1} more are missing" if len(missing) > 1 else ""
        raise ValueError(f"{missing[0].origin}: file {path.parent / missing[0].path} does not exist{more}")
    without_split = [row for row in rows if not row.split]
    if 0 < len(without_split) < len(rows):
        raise ValueError(f"{without_split[0].origin}: the split is empty, unlike in other rows: give one in all")
    return rows


def _read_csv(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv_rows(path.name, file, REQUIRED_COLUMNS)
        return [_row(origin, cells, cells["label"].split("|"), "|" in cells["label"]) for origin, cells in rows]


def _read_parquet(path: Path) -> list[Row]:
    with named_if_damaged(path, "save it as parquet again"):
        table = pq.read_table(path)
    check_columns(path.name, table.column_names, REQUIRED_COLUMNS)
    label_type = table.schema.field("label").type
    multi = pa.types.is_list(label_type) or pa.types.is_large_list(label_type)
    return [
        _row(f"{path.name}, row {number}", cells, cells["label"] or [] if multi else [cells["label"]], multi)
        for number, cells in enumerate(table.to_pylist(), 1)
    ]


def _row(origin: str, cells: Mapping[str, Any], labels: Sequence[Any], multi: bool) -> Row:
    texts = (cells["path"], cells["user"], cells.get("split"), *labels)
    path, user, split, *labels = ("" if text is None else str(text).strip() for text in texts)
    if ("lat" in cells) != ("lon" in cells):
        raise ValueError(f"{origin}: {'lon' if 'lat' in cells else 'lat'} is missing: give both columns, or none")
    for name, is_empty in (("path", not path), ("user", not user), ("label", not labels or "" in labels)):
        if is_empty:
            raise ValueError(f"{origin}: the {name} is empty")
    if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
        raise ValueError(f"{origin}: the path {path!r} leaves the folder of the table: give a path below it")
    if split not in ("", "train", "val", "test"):
        raise ValueError(f"{origin}: the split is {split!r}: give train, val or test")
    lat, lon = (_degrees(origin, name, cells.get(name)) for name in ("lat", "lon"))
    return Row(origin, path, user, labels, multi, split, lat, lon, _further_cells(origin, cells))


def _further_cells(origin: str, cells: Mapping[str, Any]) -> dict[str, Any]:
    extra = {name: cell for name, cell in cells.items() if name not in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)}
    for name in OTHER_NAMES:
        if name in extra:
            raise ValueError(f"{origin}: a dataset has a column {name!r} of its own: rename that of the table")
    return extra


def _degrees(origin: str, name: str, cell: object) -> float:
    try:
        return float(str(cell)) if cell not in (None, "") else math.nan
    except ValueError:
        raise ValueError(f"{origin}: {name} is {cell!r}: give degrees, or leave the cell empty") from None


def _labels(rows: list[Row]) -> Labels:
    """Return labels whose classes are in the order of their names, or of their numbers if all are numbers."""
    names = sorted({name for row in rows for name in row.labels})
    classes = tuple(sorted(names, key=int) if all(name.isdecimal() for name in names) else names)
    ids = {name: i for i, name in enumerate(classes)}
    if any(row.multi for row in rows):
        return MultiLabels.from_lists([[ids[name] for name in row.labels] for row in rows], classes)
    return SingleLabels(np.array([ids[row.labels[0]] for row in rows]), classes)


def write_synthetic(synthetic: SyntheticImages, raw: Path) -> None:
    """Write synthetic images as PNG files in <user>/<class>/ folders."""
    write_synthetic_marker(raw)
    population = make_synthetic(synthetic)
    examples = np.arange(len(population))
    labels, owners = population.labels.nonzero()[1], population.owners(examples)
    for example, pixels in enumerate(population.pixels(examples)):
        folder = raw / population.user_name(owners[example]) / population.classes[labels[example]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{example:06d}.png")
