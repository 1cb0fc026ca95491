"""The files of CIFAR-10 and CIFAR-100 (Krizhevsky 2009): python and binary versions, packed or not, checked, read."""

import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints, SingleLabels

SITE = "https://www.cs.toronto.edu/~kriz/"
SPLITS = "https://storage.googleapis.com/gresearch/federated-vision-datasets/"  # + cifar10_v1.1.zip, cifar100_v1.1.zip
MD5 = {
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    "cifar-10-batches-bin/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "cifar-10-batches-bin/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "cifar-10-batches-bin/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "cifar-10-batches-bin/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "cifar-10-batches-bin/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "cifar-10-batches-bin/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "cifar-100-python/meta": "7973b15100ade9c7d40fb424638fde48",
}
STANDIN = "standin.txt"  # beside files that are not the published ones, and are not meant to be
SIDE, PIXELS = 32, 3 * 32 * 32


@dataclass(frozen=True)
class Task:
    """One kind of label: where the names of its classes are, and what its labels are called in a python batch."""

    file: str
    names: str
    labels: str


@dataclass(frozen=True)
class Edition:
    """One of the four forms in which CIFAR is published."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    tasks: Mapping[str, Task]  # in the order of their bytes in a binary record

    @property
    def binary(self) -> bool:
        return self.test.endswith(".bin")


BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
EDITIONS = {
    "cifar-10-python": Edition(
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        BATCHES,
        "test_batch",
        {"class": Task("batches.meta", "label_names", "labels")},
    ),
    "cifar-10-binary": Edition(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"{name}.bin" for name in BATCHES),
        "test_batch.bin",
        {"class": Task("batches.meta.txt", "label_names", "labels")},
    ),
    "cifar-100-python": Edition(
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        ("train",),
        "test",
        {
            "coarse": Task("meta", "coarse_label_names", "coarse_labels"),
            "fine": Task("meta", "fine_label_names", "fine_labels"),
        },
    ),
    "cifar-100-binary": Edition(
        "cifar-100-binary.tar.gz",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        {
            "coarse": Task("coarse_label_names.txt", "coarse_label_names", "coarse_labels"),
            "fine": Task("fine_label_names.txt", "fine_label_names", "fine_labels"),
        },
    ),
}


@dataclass(frozen=True)
class RawCifar:
    """The files of one edition, as bytes."""

    edition: Edition
    origin: str
    files: Mapping[str, bytes]

    @property
    def standin(self) -> bool:
        return STANDIN in self.files

    def __getitem__(self, name: str) -> bytes:
        if name not in self.files:
            raise ValueError(f"{self.origin} has no {name}: download {SITE}{self.edition.archive} again")
        return self.files[name]

    def damaged(self, name: str, why: str) -> ValueError:
        return ValueError(f"{name} in {self.origin} {why}: download {SITE}{self.edition.archive} again")


def find(raw: Path, classes: int) -> RawCifar:
    """The files of the first edition that is there, each checked to be the published one where that is known."""
    editions = [e for name, e in EDITIONS.items() if name.startswith(f"cifar-{classes}-")]
    for edition in editions:
        for folder in (raw / edition.folder, raw):
            if any((folder / name).is_file() for name in (*edition.train, edition.test)):
                return _from_folder(folder, edition)
        for archive in (raw / edition.archive, raw):
            if archive.is_file() and archive.name == edition.archive:
                return _from_archive(archive, edition)
    archives = " or ".join(e.archive for e in editions)
    raise ValueError(f"there is no CIFAR-{classes} in {raw}: put {archives} from {SITE} there, or its folder")


def read(raw: RawCifar) -> tuple[NDArray[np.uint8], dict[str, SingleLabels], int]:
    """All images [N, 32, 32, 3], their labels for each task, and how many of them are train images: the first."""
    parse = _binary if raw.edition.binary else _python
    parts = [parse(raw, name) for name in (*raw.edition.train, raw.edition.test)]
    counts = [len(pixels) for pixels, _ in parts]
    train = sum(counts[:-1])
    if not raw.standin and (train, counts[-1]) != (50_000, 10_000):
        raise ValueError(f"{raw.origin} has {train} train and {counts[-1]} test images, not 50000 and 10000")
    labels = {}
    for place, (name, task) in enumerate(raw.edition.tasks.items()):
        ids, classes = np.concatenate([part[1][:, place] for part in parts]), _class_names(raw, task)
        if ids.max() >= len(classes):
            raise ValueError(f"{raw.origin} has a {name} label {ids.max()} and names for {len(classes)} classes alone")
        labels[name] = SingleLabels(ids, classes)
    planes_NCHW = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, SIDE, SIDE)
    return np.ascontiguousarray(planes_NCHW.transpose(0, 2, 3, 1)), labels, train


def _from_folder(folder: Path, edition: Edition) -> RawCifar:
    wanted = {*edition.train, edition.test, STANDIN, *(task.file for task in edition.tasks.values())}
    raw = RawCifar(
        edition, str(folder), {name: (folder / name).read_bytes() for name in wanted if (folder / name).is_file()}
    )
    for name, content in raw.files.items():
        published = MD5.get(f"{edition.folder}/{name}")
        if published and not raw.standin and hashlib.md5(content).hexdigest() != published:
            raise raw.damaged(name, "is not the published file (its md5 differs)")
    return raw


def _from_archive(archive: Path, edition: Edition) -> RawCifar:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = [m for m in tar if m.isfile() and PurePosixPath(m.name).parent.name == edition.folder]
            files = {PurePosixPath(m.name).name: tar.extractfile(m).read() for m in members}  # type: ignore[union-attr]
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{archive} is truncated or damaged ({error}): download {SITE}{archive.name} again") from None
    raw = RawCifar(edition, str(archive), files)
    with archive.open("rb") as opened:
        if not raw.standin and hashlib.file_digest(opened, "md5").hexdigest() != MD5[archive.name]:
            raise ValueError(
                f"{archive} is not the published file (its md5 differs): download {SITE}{archive.name} again"
            )
    return raw


def _binary(raw: RawCifar, name: str) -> tuple[NDArray[np.uint8], Ints]:
    """Records of one byte for each task, then 1024 red, 1024 green and 1024 blue ones."""
    tasks = len(raw.edition.tasks)
    content = raw[name]
    if not content or len(content) % (tasks + PIXELS):
        raise raw.damaged(name, f"has {len(content)} bytes, which is no number of records of {tasks + PIXELS}")
    records = np.frombuffer(content, np.uint8).reshape(-1, tasks + PIXELS)
    return records[:, tasks:], records[:, :tasks].astype(np.int64)


def _python(raw: RawCifar, name: str) -> tuple[NDArray[np.uint8], Ints]:
    batch = _unpickled(raw, name)
    array = batch.get("data")
    labels = [batch.get(task.labels) for task in raw.edition.tasks.values()]
    pixels: NDArray[np.uint8] = array.pixels if isinstance(array, _PickledArray) else np.empty(0, np.uint8)
    if pixels.shape[1:] != (PIXELS,) or not all(
        isinstance(ids, list) and len(ids) == len(pixels) and all(type(i) is int and i >= 0 for i in ids)
        for ids in labels
    ):
        raise raw.damaged(name, "is not a batch of CIFAR")
    return pixels, np.array(labels, np.int64).T


def _class_names(raw: RawCifar, task: Task) -> tuple[str, ...]:
    if raw.edition.binary:
        return tuple(line for line in raw[task.file].decode().splitlines() if line)
    names = _unpickled(raw, task.file).get(task.names)
    if not isinstance(names, list):
        raise raw.damaged(task.file, f"has no {task.names}")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _unpickled(raw: RawCifar, name: str) -> dict[str, Any]:
    try:
        found = _Unpickler(io.BytesIO(raw[name]), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in found.items()}
    except Exception as error:  # a damaged pickle fails in any way
        raise raw.damaged(name, f"cannot be read ({error})") from None


class _PickledArray:
    """What a pickled array of bytes becomes, without running any of NumPy's code."""

    def __init__(self, *_: object) -> None:
        self.pixels: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, data = state
        if kind.name not in (b"u1", "u1"):
            raise pickle.UnpicklingError("an array is not of bytes")
        self.pixels = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Kind:
    """What a pickled dtype becomes."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


def _latin1(text: str, _: str) -> bytes:
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Plain values and arrays of bytes; anything else that a pickle names is refused, and nothing is ever called."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
            ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
            ("numpy", "ndarray"): _PickledArray,
            ("numpy", "dtype"): _Kind,
            ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes for Python 2
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return allowed[module, name]
