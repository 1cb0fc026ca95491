"""Read and check the files of CIFAR-10 and CIFAR-100 (Krizhevsky 2009): python or binary, an archive or a folder."""

import gzip
import hashlib
import io
import pickle
import tarfile
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels
from manyeyes.data.download.archive import LimitedReader, TooLargeError
from manyeyes.data.manifest import SYNTHETIC_MARKER

SITE = "https://www.cs.toronto.edu/~kriz/"
SIDE, PIXEL_BYTES = 32, 3 * 32 * 32
MAX_UNPACKED_BYTES = 200_000_000  # of an archive; the published ones have up to 187 MB
# The names that a python batch may use.
ALLOWED_GLOBALS = {"numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype", "_codecs.encode"}


@dataclass(frozen=True)
class Edition:
    """One of the four forms in which CIFAR is published, as `cifar.toml` declares it."""

    name: str
    folder: str
    train: list[str]
    test: str
    class_files: dict[str, str]  # the file with each task's class names, in the order of a binary record's bytes
    archive_md5: str
    md5: dict[str, str]  # of the files in the folder

    @property
    def archive(self) -> str:
        return f"{self.name}.tar.gz"

    @property
    def binary(self) -> bool:
        return self.test.endswith(".bin")


_TABLES = tomllib.loads(files("manyeyes.data.datasets").joinpath("cifar.toml").read_text())
EDITIONS = {name: Edition(name, **table) for name, table in _TABLES.items()}


def _pickle_key(task: str, name: str) -> str:
    """Return the key of a task's `labels` or `label_names` in a python batch: labels, or fine_labels."""
    return name if task == "class" else f"{task}_{name}"


@dataclass(frozen=True)
class RawCifar:
    """The files of one edition, as bytes."""

    edition: Edition
    origin: Path
    files: Mapping[str, bytes]

    @property
    def synthetic(self) -> bool:
        return SYNTHETIC_MARKER in self.files  # these are not the published files, and are not meant to be

    def __getitem__(self, name: str) -> bytes:
        if name not in self.files:
            raise self.damaged(name, "is missing")
        return self.files[name]

    def damaged(self, name: str, reason: str) -> ValueError:
        return ValueError(f"{name} in {self.origin} {reason}: download {SITE}{self.edition.archive} again")


def find(raw: Path, classes: int) -> RawCifar:
    """Return the files of the first edition in a folder, each checked to be the published edition where that is known."""
    editions = [edition for edition in EDITIONS.values() if edition.name.startswith(f"cifar-{classes}-")]
    candidates = [
        (edition, path) for edition in editions for path in (raw, raw / edition.folder, raw / edition.archive)
    ]
    for edition, path in candidates:
        if path.is_file() and path.name == edition.archive:
            return _read_archive(path, edition)
        if any((path / name).is_file() for name in (*edition.train, edition.test)):
            return _read_folder(path, edition)
    archives = " or ".join(edition.archive for edition in editions)
    raise ValueError(f"CIFAR-{classes} is not in {raw}: put {archives} from {SITE} there, or the folder in it")


def read(raw: RawCifar) -> tuple[NDArray[np.uint8], dict[str, SingleLabels], int]:
    """Return all images [N, 32, 32, 3], their labels for each task, and the number of train images, which are first."""
    parse = _parse_binary if raw.edition.binary else _parse_pickle
    pixels, label_ids = zip(*(parse(raw, name) for name in (*raw.edition.train, raw.edition.test)), strict=True)
    num_train = sum(map(len, pixels[:-1]))
    labels = {}
    for task, ids in zip(raw.edition.class_files, np.concatenate(label_ids).T, strict=True):
        classes = _class_names(raw, task)
        if ids.max() >= len(classes):
            raise ValueError(f"{raw.origin} has {task} label {ids.max()} and names for only {len(classes)} classes")
        labels[task] = SingleLabels(ids, classes)
    planes_NCHW = np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(planes_NCHW.transpose(0, 2, 3, 1)), labels, num_train


def _read_folder(folder: Path, edition: Edition) -> RawCifar:
    paths = [folder / name for name in {*edition.train, edition.test, SYNTHETIC_MARKER, *edition.class_files.values()}]
    raw = RawCifar(edition, folder, {path.name: path.read_bytes() for path in paths if path.is_file()})
    for name, content in raw.files.items():
        md5 = edition.md5.get(name)
        if md5 and not raw.synthetic and hashlib.md5(content).hexdigest() != md5:
            raise raw.damaged(name, "is not the published file (its md5 differs)")
    return raw


def _read_archive(archive: Path, edition: Edition) -> RawCifar:
    """Return the files in an archive, which is the published one or has synthetic images."""
    folder, data = RawCifar(edition, archive.parent, {}), archive.read_bytes()
    try:
        stream: Any = LimitedReader(gzip.GzipFile(fileobj=io.BytesIO(data)), MAX_UNPACKED_BYTES)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            members = ((PurePosixPath(m.name), m) for m in tar if m.isfile())
            files = {path.name: tar.extractfile(m).read() for path, m in members if path.parent.name == edition.folder}  # type: ignore[union-attr]
    except TooLargeError:
        raise folder.damaged(archive.name, f"has more than {MAX_UNPACKED_BYTES / 1e6:.0f} MB") from None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise folder.damaged(archive.name, f"is truncated or damaged ({error})") from None
    raw = RawCifar(edition, archive, files)
    if not raw.synthetic and hashlib.md5(data).hexdigest() != edition.archive_md5:
        raise folder.damaged(archive.name, "is not the published file (its md5 differs)")
    return raw


def _parse_binary(raw: RawCifar, name: str) -> tuple[NDArray[np.uint8], Ints]:
    """Return pixels and labels from records of a byte for each task, then 1024 red, 1024 green and 1024 blue ones."""
    num_tasks, content = len(raw.edition.class_files), raw[name]
    if not content or len(content) % (num_tasks + PIXEL_BYTES):
        raise raw.damaged(name, f"has {len(content)} bytes, not a multiple of {num_tasks + PIXEL_BYTES}")
    records = np.frombuffer(content, np.uint8).reshape(-1, num_tasks + PIXEL_BYTES)
    return records[:, num_tasks:], records[:, :num_tasks].astype(np.int64)


def _parse_pickle(raw: RawCifar, name: str) -> tuple[NDArray[np.uint8], Ints]:
    batch = _unpickle(raw, name)
    data = batch.get("data")
    pixels = data if isinstance(data, np.ndarray) and data.dtype == np.uint8 else np.empty(0, np.uint8)
    labels: list[Any] = [batch.get(_pickle_key(task, "labels")) for task in raw.edition.class_files]
    is_complete = all(isinstance(ids, list) and len(ids) == len(pixels) for ids in labels)
    is_valid = is_complete and all(type(i) is int and i >= 0 for ids in labels for i in ids)
    if pixels.shape[1:] != (PIXEL_BYTES,) or not is_valid:
        raise raw.damaged(name, "is not a batch of CIFAR")
    return pixels, np.array(labels, np.int64).T


def _class_names(raw: RawCifar, task: str) -> tuple[str, ...]:
    file, key = raw.edition.class_files[task], _pickle_key(task, "label_names")
    try:
        if raw.edition.binary:
            return tuple(line for line in raw[file].decode().splitlines() if line)
        names = _unpickle(raw, file).get(key)
        if not isinstance(names, list):
            raise raw.damaged(file, f"has no {key}")
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
    except UnicodeDecodeError:
        raise raw.damaged(file, "is not text") from None


def _unpickle(raw: RawCifar, name: str) -> dict[str, Any]:
    try:
        content = _Unpickler(io.BytesIO(raw[name]), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}
    except Exception as error:  # a damaged pickle fails in any way
        raise raw.damaged(name, f"cannot be read ({error})") from None


class _Unpickler(pickle.Unpickler):
    """Plain values and arrays; anything else that a pickle names is refused, and not called."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}".replace("numpy._core.", "numpy.core.") not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core.", "numpy._core."), name)
