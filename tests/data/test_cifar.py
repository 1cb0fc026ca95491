"""CIFAR: records written by hand, synthetic files in all four editions, damaged files, and the real images."""

from __future__ import annotations

import lzma
import os
import pickle
import runpy
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyeyes.data.datasets import cifar, cifar_files
from manyeyes.data.manifest import SYNTHETIC_MARKER
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

SHARED = Path(__file__).resolve().parents[3] / "shared"
EDITIONS = list(cifar_files.EDITIONS)


SYNTHETIC = SyntheticImages(users=30, size=32, coarse=10, fine=20, images_per_user=8)
CopyEdition = Callable[[str, Path], Path]


@pytest.fixture(scope="module")
def editions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each edition, with the same synthetic images."""
    raw = tmp_path_factory.mktemp("cifar")
    for classes in (10, 100):
        cifar.write_synthetic(SYNTHETIC, raw, classes)
        write_python_edition(raw, classes)
    return {name: raw / edition.folder for name, edition in cifar_files.EDITIONS.items()}


@pytest.fixture
def copy_edition(editions: dict[str, Path]) -> CopyEdition:
    """Return a function that copies the folder of an edition into a raw folder and returns the copy."""
    return lambda name, raw: Path(shutil.copytree(editions[name], raw / editions[name].name))


@pytest.fixture
def folder(tmp_path: Path, copy_edition: CopyEdition) -> Path:
    return copy_edition("cifar-10-binary", tmp_path)


def write_python_edition(raw: Path, classes: int) -> None:
    """Write the content of the binary edition as the python edition."""
    edition, binary = (cifar_files.EDITIONS[f"cifar-{classes}-{kind}"] for kind in ("python", "binary"))
    folder, binary_folder = raw / edition.folder, raw / binary.folder
    folder.mkdir()
    prefixes = ("",) if classes == 10 else ("coarse_", "fine_")
    for file, binary_file in zip((*edition.train, edition.test), (*binary.train, binary.test), strict=True):
        content = (binary_folder / binary_file).read_bytes()
        records = np.frombuffer(content, np.uint8).reshape(-1, len(prefixes) + 3072)
        labels = {f"{prefix}labels": records[:, i].tolist() for i, prefix in enumerate(prefixes)}
        batch = {"data": records[:, len(prefixes) :].copy(), **labels}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=2))
    names = [(binary_folder / file).read_text().splitlines() for file in binary.class_files.values()]
    meta = {f"{prefix}label_names": task_names for prefix, task_names in zip(prefixes, names, strict=True)}
    (folder / next(iter(edition.class_files.values()))).write_bytes(pickle.dumps(meta, protocol=2))
    (folder / SYNTHETIC_MARKER).touch()


def reddish() -> bytes:
    """Return one image: red is the row, green the column, blue 200."""
    row, column = np.indices((32, 32))
    return bytes(row.ravel().tolist()) + bytes(column.ravel().tolist()) + bytes([200]) * 1024


def python2(pixels: bytes, label: int) -> bytes:
    """Return a batch of one image as Python 2 and NumPy 1 wrote it, opcode by opcode: {data, labels}."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    dtype = (
        b"cnumpy\ndtype\n("
        + short(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + short(b"b") + b"tR"
    state = b"(K\x01(K\x01M\x00\x0ct" + dtype + b"\x89T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
    return b"\x80\x02}(" + short(b"data") + array + state + short(b"labels") + b"]K" + bytes([label]) + b"au."


def check_reddish(image: np.ndarray) -> None:
    row, column = np.indices((32, 32))
    assert np.array_equal(image, np.stack([row, column, np.full((32, 32), 200)], axis=-1))


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, content in {**files, SYNTHETIC_MARKER: b""}.items():
        (folder / name).write_bytes(content)


def test_channels_of_a_binary_record_written_by_hand(tmp_path: Path) -> None:
    record = bytes([1]) + reddish()
    files = {f"data_batch_{i}.bin": record for i in range(1, 6)} | {"test_batch.bin": record}
    write(tmp_path / "cifar-10-batches-bin", files | {"batches.meta.txt": b"cat\ndog\n\n"})
    images, labels, train = cifar_files.read(cifar_files.find(tmp_path, 10))
    check_reddish(images[5])
    assert labels["class"].ids.tolist() == [1] * 6
    assert labels["class"].classes == ("cat", "dog")
    assert train == 5


def test_a_binary_record_of_cifar_100_has_the_coarse_label_first(tmp_path: Path) -> None:
    names = {"coarse_label_names.txt": b"a\nb\n", "fine_label_names.txt": b"c\nd\ne\n"}
    record = bytes([1, 2]) + reddish()
    write(tmp_path / "cifar-100-binary", {"train.bin": record * 2, "test.bin": record, **names})
    images, labels, _ = cifar_files.read(cifar_files.find(tmp_path, 100))
    check_reddish(images[2])
    assert labels["coarse"].ids.tolist() == [1, 1, 1]
    assert labels["fine"].ids.tolist() == [2, 2, 2]


def test_channels_of_a_python_2_pickle_written_by_hand(tmp_path: Path) -> None:
    batch = python2(reddish(), 1)
    assert np.array_equal(pickle.loads(batch, encoding="bytes")[b"data"][0, :32], np.zeros(32))
    files = {f"data_batch_{i}": batch for i in range(1, 6)} | {"test_batch": batch}
    write(tmp_path / "cifar-10-batches-py", files | {"batches.meta": pickle.dumps({b"label_names": [b"cat", b"dog"]})})
    images, labels, _ = cifar_files.read(cifar_files.find(tmp_path, 10))
    check_reddish(images[3])
    assert labels["class"].ids.tolist() == [1] * 6


def test_too_few_images_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CIFAR needs more than 4 train and 0 test images: give more users"):
        cifar.write_synthetic(replace(SYNTHETIC, users=1, images_per_user=4), tmp_path / "raw", 10)
    assert not (tmp_path / "raw").exists()


@pytest.mark.fast_cases("cifar-10-python")
@pytest.mark.parametrize("edition", EDITIONS)
def test_synthetic_files_have_the_images_and_labels_of_their_population(
    copy_edition: CopyEdition, tmp_path: Path, edition: str
) -> None:
    copy_edition(edition, tmp_path)
    images, labels, train = cifar_files.read(cifar_files.find(tmp_path, 100 if "100" in edition else 10))
    main_labels = labels["fine" if "100" in edition else "class"]
    population = make_synthetic(SYNTHETIC, processes=1)
    split = np.asarray(population.columns["split"])

    def contents(pixels: np.ndarray, ids: np.ndarray) -> list[tuple[bytes, int]]:
        return sorted((image.tobytes(), int(label)) for image, label in zip(pixels, ids, strict=True))

    for rows, mask in ((slice(train), split != "test"), (slice(train, None), split == "test")):
        expected = population.filter(mask)
        every = np.arange(len(expected))
        assert contents(images[rows], main_labels.ids[rows]) == contents(
            expected.pixels(every), expected.labels.targets(every)
        )
    assert main_labels.classes == population.classes
    if "100" in edition:
        assert np.array_equal(labels["coarse"].ids, main_labels.ids // 5)


@pytest.mark.parametrize("edition", EDITIONS)
def test_an_archive_has_the_same_images_as_its_folder(copy_edition: CopyEdition, tmp_path: Path, edition: str) -> None:
    folder = copy_edition(edition, tmp_path / "made")
    archive = tmp_path / cifar_files.EDITIONS[edition].archive
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    classes = 100 if "100" in edition else 10
    expected = cifar_files.read(cifar_files.find(folder, classes))[0]
    for raw in (tmp_path, archive):
        assert np.array_equal(cifar_files.read(cifar_files.find(raw, classes))[0], expected)


def test_with_dirichlet_train_images_have_users_and_test_images_have_none(folder: Path) -> None:
    manifest = cifar.read_manifest(folder.parent, partition="dirichlet", users=12, alpha=0.5)
    assert ((manifest.users == "") == (manifest.split == "test")).all()
    sizes = np.unique(manifest.users[manifest.split == "train"], return_counts=True)[1]
    assert sizes.tolist() == [18] * 12
    assert sorted(manifest.image) == list(range(240))
    assert manifest.columns["image_id"][[0, -1]].tolist() == ["train-00000", "test-00023"]
    assert manifest.notes["alpha"] == 0.5
    assert manifest.caveats == ("synthetic images",)


def test_with_classes_each_user_has_train_and_test_images_of_n_classes(folder: Path) -> None:
    manifest = cifar.read_manifest(folder.parent, partition="classes", users=10, classes_per_client=4)
    assert len(manifest) == 240
    assert set(manifest.users) == set("0123456789")
    ids = manifest.labels["class"].targets(np.arange(240))
    for user in set(manifest.users):
        is_own = manifest.users == user
        assert set(manifest.split[is_own]) == {"train", "test"}
        assert len(set(ids[is_own])) <= 4


def test_iid_users_have_equally_many_train_images(folder: Path) -> None:
    manifest = cifar.read_manifest(folder.parent, partition="iid", users=6)
    assert np.unique(manifest.users, return_counts=True)[1].tolist() == [24] + [36] * 6


def test_released_users_are_those_of_the_csv_and_images_that_it_leaves_out_are_left_out(folder: Path) -> None:
    ids = cifar_files.read(cifar_files.find(folder, 10))[1]["class"].ids
    csv = folder / "split.csv"
    csv.write_text(f"user_id,image_id,class\n11,4,{ids[4]}\n3,0,{ids[0]}\n")
    manifest = cifar.read_manifest(folder.parent, partition="released", splits=csv)
    assert manifest.users[:2].tolist() == ["03", "11"]
    assert manifest.image[:3].tolist() == [0, 4, 216]
    assert set(manifest.split[2:]) == {"test"}


def test_splits_that_the_partition_does_not_use_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"'split\.csv' are not used by partition=dirichlet: set partition=released"):
        cifar.read_manifest(folder.parent, splits=Path("split.csv"))


@pytest.mark.parametrize("task", ["fine", "coarse"])
def test_the_chosen_labels_of_cifar_100_come_first(copy_edition: CopyEdition, tmp_path: Path, task: str) -> None:
    copy_edition("cifar-100-python", tmp_path)
    manifest = cifar.read_manifest(tmp_path, classes=100, users=5, task=task)
    assert next(iter(manifest.labels)) == task
    assert set(manifest.labels) == {"fine", "coarse"}


def test_a_file_that_is_not_the_published_one_is_refused_by_name(folder: Path) -> None:
    (folder / SYNTHETIC_MARKER).unlink()
    with pytest.raises(
        ValueError, match=r"(data|test)_batch.*\.bin in .* is not the published file \(its md5 differs\)"
    ):
        cifar_files.find(folder, 10)


def test_an_archive_that_is_not_the_published_one_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (folder / SYNTHETIC_MARKER).unlink()
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
        tar.add(folder, folder.name)
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz in .* is not the published file"):
        cifar_files.find(tmp_path / "cifar-10-binary.tar.gz", 10)


def test_a_binary_file_of_cifar_100_that_is_not_the_published_one_is_refused(
    copy_edition: CopyEdition, tmp_path: Path
) -> None:
    folder = copy_edition("cifar-100-binary", tmp_path)
    (folder / SYNTHETIC_MARKER).unlink()
    with pytest.raises(ValueError, match=r"(train|test)\.bin in .* is not the published file \(its md5 differs\)"):
        cifar.read_manifest(tmp_path, classes=100)


@pytest.mark.slow
def test_an_archive_is_unpacked_to_no_more_than_the_size_of_cifar(copy_edition: CopyEdition, tmp_path: Path) -> None:
    folder = copy_edition("cifar-10-binary", tmp_path / "made")
    with (folder / "data_batch_1.bin").open("r+b") as file:
        file.truncate(2 * cifar_files.MAX_UNPACKED_BYTES)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(folder, folder.name)
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz in .* has more than 200 MB: download https://"):
        cifar.read_manifest(tmp_path)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match=r"data_batch_3\.bin in .* is missing: download https://"):
        cifar.read_manifest(folder.parent)


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"data_batch_2\.bin in .* has \d+ bytes, not a multiple of 3073"):
        cifar.read_manifest(folder.parent)


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_truncated_archive_is_named(copy_edition: CopyEdition, tmp_path: Path, size: int) -> None:
    folder = copy_edition("cifar-10-binary", tmp_path / "made")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    archive.write_bytes(archive.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz in .* is truncated or damaged"):
        cifar.read_manifest(tmp_path)


def test_an_empty_folder_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"put cifar-100-python\.tar\.gz or cifar-100-binary\.tar\.gz from https://"):
        cifar.read_manifest(tmp_path, classes=100)


class Evil:
    """Runs a command when an ordinary unpickler reads it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_asks_for_code_is_refused_and_runs_nothing(
    copy_edition: CopyEdition, tmp_path: Path, protocol: int
) -> None:
    folder = copy_edition("cifar-10-python", tmp_path)
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": Evil(tmp_path / "ran")}, protocol))
    with pytest.raises(ValueError, match=r"data_batch_1 in .* cannot be read \(it asks for \w+\.system\)"):
        cifar.read_manifest(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "batch",
    [
        {"data": np.zeros((2, 3072), np.float64), "labels": [0, 0]},
        {"data": np.zeros((2, 3072), object), "labels": [0, 0]},
        {"data": np.zeros((2, 3071), np.uint8), "labels": [0, 0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, "a"]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]},
        {"labels": [0]},
        [1, 2],
    ],
)
def test_a_pickle_that_is_not_a_batch_is_refused_by_name(
    copy_edition: CopyEdition, tmp_path: Path, batch: object
) -> None:
    folder = copy_edition("cifar-10-python", tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(ValueError, match=r"test_batch in .* (cannot be read|is not a batch of CIFAR)"):
        cifar.read_manifest(tmp_path)


def test_a_label_without_a_name_is_refused(folder: Path) -> None:
    (folder / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(ValueError, match="class label 9 and names for only 2 classes"):
        cifar.read_manifest(folder.parent)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 20}, "Unknown classes of CIFAR 20: choose 10, 100"),
        ({"partition": "pachinko"}, "Unknown partition 'pachinko': choose dirichlet"),
        ({"task": "rough"}, "Unknown task of CIFAR-100 'rough': choose fine, coarse"),
        ({"partition": "released"}, "partition=released needs splits"),
        ({"users": 1000}, "users is 1000: set it to a whole number of at least 1 and at most 216"),
    ],
)
def test_unknown_options_are_refused(folder: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cifar.read_manifest(folder.parent, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"size": 64}, {"coarse": 11}])
def test_synthetic_images_that_do_not_fit_cifar_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set size=32 and coarse to at most 10 for CIFAR-10"):
        cifar.write_synthetic(replace(SYNTHETIC, **change), tmp_path, 10)


@pytest.mark.slow
def test_the_real_first_batch_of_cifar_10_is_the_published_one_and_shows_a_frog_and_a_truck(
    folder: Path, tmp_path: Path
) -> None:
    archive = SHARED / "data" / "cifar10" / "part_a.npz"
    if not archive.exists():
        pytest.skip(f"needs the real CIFAR-10 in {SHARED}")
    with np.load(archive) as packed:  # its first 10,000 images, as unpacking all takes half a minute
        planes = np.frombuffer(lzma.decompress(packed["xz"].tobytes()), np.uint8).reshape(3, -1, 32, 32)[:, :10_000]
        first = np.frombuffer(lzma.compress(planes.tobytes(), preset=0), np.uint8)
        np.savez(tmp_path / "first.npz", xz=first, y=packed["y"][:10_000])
    pixels, ids = runpy.run_path(str(SHARED / "tools" / "unpack_cifar10"))["load"](tmp_path / "first.npz")
    batch = np.column_stack([ids, pixels.reshape(10_000, -1)]).tobytes()
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "data_batch_1.bin").write_bytes(batch)
    assert not cifar_files.find(tmp_path / "published", 10).synthetic
    (tmp_path / "published" / "data_batch_1.bin").write_bytes(batch[:-1] + b"\x00")
    with pytest.raises(ValueError, match=r"data_batch_1\.bin in .* is not the published file"):
        cifar_files.find(tmp_path / "published", 10)
    (folder / "data_batch_1.bin").write_bytes(batch)
    images, labels, _ = cifar_files.read(cifar_files.find(folder, 10))
    # The first pixels of the frog and of the truck, as others show them.
    assert images[:2, 0, 0].tolist() == [[59, 62, 63], [154, 177, 187]]
    assert labels["class"].ids[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
