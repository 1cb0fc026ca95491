"""Hugging Face's parquet shards, written here by pyarrow with the columns of the datasets library."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from manyeyes.core.population import MultiLabels
from manyeyes.data.datasets import flair, flair_huggingface
from manyeyes.data.synthetic.dataset import SyntheticImages


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (value,) * 3).save(file, "PNG")
    return file.getvalue()


def row(number: int, user: str, coarse: list[str]) -> dict[str, Any]:
    return {
        "image": {"bytes": png(number), "path": None},
        "image_id": f"i{number}",
        "user_id": user,
        "labels": coarse,
        "fine_grained_labels": [f"fine {name}" for name in coarse],
    }


def write(path: Path, rows: list[dict[str, Any]], group: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Return two train shards of five and of one row, and one shard each of val and test."""
    ann = [row(k, "ann", ["plant", "animal"] if k % 2 else ["food"]) for k in range(5)]
    write(tmp_path / "data" / "train-00000-of-00002.parquet", ann)
    write(tmp_path / "data" / "train-00001-of-00002.parquet", [row(5, "bob", [])])
    write(tmp_path / "data" / "val-00000-of-00001.parquet", [row(6, "cid", ["food"])])
    write(tmp_path / "data" / "test-00000-of-00001.parquet", [row(7, "dan", ["music"])])
    return tmp_path


def gray(data: bytes) -> int:
    return int(np.asarray(Image.open(io.BytesIO(data)))[0, 0, 0])


def test_every_row_has_its_own_image_split_and_labels(raw: Path) -> None:
    manifest = flair_huggingface.read_manifest(raw)
    rows = {}
    for k in range(len(manifest)):
        labels = manifest.labels["coarse"]
        names = [labels.classes[i] for i in labels.nonzero(np.array([k]))[1]]
        data = manifest.source.read(int(manifest.image[k]))
        assert isinstance(data, bytes)
        rows[str(manifest.columns["image_id"][k])] = (gray(data), str(manifest.split[k]), str(manifest.users[k]), names)
    assert rows == {
        "i0": (0, "train", "ann", ["food"]),
        "i1": (1, "train", "ann", ["animal", "plant"]),
        "i2": (2, "train", "ann", ["food"]),
        "i3": (3, "train", "ann", ["animal", "plant"]),
        "i4": (4, "train", "ann", ["food"]),
        "i5": (5, "train", "bob", []),
        "i6": (6, "val", "cid", ["food"]),
        "i7": (7, "test", "dan", ["music"]),
    }
    assert manifest.labels["fine"].classes == ("fine animal", "fine food", "fine music", "fine plant")
    assert set(manifest.notes) == {"source", "license"}


def test_a_source_can_be_pickled_after_it_was_read(raw: Path) -> None:
    source = flair_huggingface.read_manifest(raw).source
    first = [source.read(k) for k in range(len(source))]
    copy = pickle.loads(pickle.dumps(source))
    assert [copy.read(k) for k in range(len(copy))] == first
    assert [copy.name(k) for k in range(len(copy))] == [source.name(k) for k in range(len(source))]


def test_a_row_group_is_read_once_for_images_in_order(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read_row_group = pq.ParquetFile.read_row_group

    def counted(file: Any, group: int, **options: Any) -> Any:
        reads.append(group)
        return read_row_group(file, group, **options)

    source = flair_huggingface.read_manifest(raw).source
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for k in range(len(source)):
        source.read(k)
    assert len(reads) == 3 + 1 + 1 + 1


def write_converted(folder: Path) -> None:
    """Write shards with the file names of Hugging Face's parquet converter."""
    for number, (split, user) in enumerate([("train", "ann"), ("validation", "bob"), ("test", "cid")]):
        write(folder / "default" / split / "0000.parquet", [row(number, user, ["food"])])


def test_the_file_names_of_the_parquet_converter_are_known(tmp_path: Path) -> None:
    write_converted(tmp_path)
    manifest = flair_huggingface.read_manifest(tmp_path)
    splits = dict(zip(manifest.users.tolist(), manifest.split.tolist(), strict=True))
    assert splits == {"ann": "train", "bob": "val", "cid": "test"}


@pytest.mark.parametrize("values", [{"user_id": None}, {"image_id": None}, {"labels": ["food", None]}])
def test_missing_values_are_refused_with_their_shard_and_column(raw: Path, values: dict[str, Any]) -> None:
    write(raw / "data" / "val-00000-of-00001.parquet", [row(6, "cid", ["food"]), row(8, "cid", ["food"]) | values])
    with pytest.raises(
        ValueError, match=rf"val-00000-of-00001\.parquet has missing values in {next(iter(values))}: down"
    ):
        flair_huggingface.read_manifest(raw)


def test_a_missing_shard_is_named_and_refused(raw: Path) -> None:
    (raw / "data" / "train-00001-of-00002.parquet").unlink()
    message = (
        r"lacks 1 shards of apple/flair \(train-00001-of-00002.parquet\), and with them classes may be missing: down"
    )
    with pytest.raises(ValueError, match=message):
        flair_huggingface.read_manifest(raw)


def test_a_missing_split_or_number_is_refused(tmp_path: Path) -> None:
    write_converted(tmp_path)
    (tmp_path / "default" / "test" / "0000.parquet").rename(tmp_path / "default" / "train" / "0002.parquet")
    with pytest.raises(ValueError, match=r"lacks 2 shards of apple/flair \(train/0001.parquet, all of test\)"):
        flair_huggingface.read_manifest(tmp_path)


def test_with_the_taxonomy_missing_shards_are_noted_and_take_no_class_away(raw: Path) -> None:
    complete = flair_huggingface.read_manifest(raw)
    fine = complete.labels["fine"].classes
    (raw / "label_relationship.txt").write_text("".join(f"{name} -> {name.split()[1]}\n" for name in fine))
    (raw / "data" / "train-00001-of-00002.parquet").unlink()
    (raw / "data" / "test-00000-of-00001.parquet").unlink()  # with the only image of music
    manifest = flair_huggingface.read_manifest(raw)
    assert manifest.notes["missing shards"] == {"count": 2, "first": ["train-00001-of-00002.parquet", "all of test"]}
    assert manifest.caveats == ("2 shards missing",)
    for task, labels in complete.labels.items():
        assert manifest.labels[task].classes == labels.classes
    names = [manifest.labels["coarse"].classes[label] for label in manifest.labels["coarse"].nonzero(np.array([0]))[1]]
    assert (str(manifest.columns["image_id"][0]), names) == ("i0", ["food"])


def test_repeated_images_and_users_in_two_splits_are_named(raw: Path) -> None:
    write(raw / "data" / "val-00000-of-00001.parquet", [row(0, "cid", []), row(8, "ann", [])])
    manifest = flair_huggingface.read_manifest(raw)
    assert manifest.notes["duplicate image ids, left out"]["count"] == 1
    assert manifest.notes["users in two splits, assigned to their first"]["count"] == 1
    splits = {(u, s) for u, s in zip(manifest.users.tolist(), manifest.split.tolist(), strict=True)}
    assert len(splits) == len({u for u, _ in splits})


def test_an_image_without_bytes_raises_an_oserror_that_names_it(raw: Path) -> None:
    rows = [row(6, "cid", []), {**row(9, "cid", []), "image": {"bytes": None, "path": "x"}}]
    write(raw / "data" / "val-00000-of-00001.parquet", rows)
    manifest = flair_huggingface.read_manifest(raw)
    index = manifest.columns["image_id"].tolist().index("i9")
    with pytest.raises(OSError, match="no bytes for image i9"):
        manifest.source.read(int(manifest.image[index]))


def test_a_folder_without_shards_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contains no parquet files"):
        flair_huggingface.read_manifest(tmp_path)


def test_a_git_lfs_pointer_or_a_truncated_shard_is_named(raw: Path) -> None:
    path = raw / "data" / "train-00000-of-00002.parquet"
    content = path.read_bytes()
    for data in (b"version https://git-lfs.github.com/spec/v1\n", b"", content[: len(content) // 2]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"train-00000-of-00002.* is not a complete parquet file"):
            flair_huggingface.read_manifest(raw)


def test_a_file_without_a_split_or_with_other_columns_is_named(tmp_path: Path) -> None:
    write(tmp_path / "stuff.parquet", [row(1, "ann", ["food"])])
    with pytest.raises(ValueError, match="does not name a split"):
        flair_huggingface.read_manifest(tmp_path)
    (tmp_path / "stuff.parquet").unlink()
    write(tmp_path / "train-00000-of-00001.parquet", [{"image": {"bytes": b""}, "label": 3}])
    with pytest.raises(ValueError, match="has no column 'image_id', only image, label: give the right file"):
        flair_huggingface.read_manifest(tmp_path)


def convert_to_shards(raw: Path, folder: Path) -> None:
    """Write a raw download as two shards for each split."""
    entries = json.loads((raw / "labels_and_metadata.json").read_text())
    for entry in entries:
        name = f"{entry['image_id']}.jpg"
        entry["image"] = {"bytes": (raw / "small_images" / name).read_bytes(), "path": name}
    for split in ("train", "val", "test"):
        rows = [entry for entry in entries if entry["partition"] == split]
        for number in range(2):
            write(folder / "data" / f"{split}-{number:05d}-of-00002.parquet", rows[number::2], group=100)


def test_shards_have_the_same_content_as_the_raw_download(tmp_path: Path) -> None:
    flair.write_synthetic(SyntheticImages(users=20, size=32, coarse=5, fine=12), tmp_path / "raw")
    convert_to_shards(tmp_path / "raw", tmp_path / "shards")
    raw, shards = flair.read_manifest(tmp_path / "raw"), flair_huggingface.read_manifest(tmp_path / "shards")
    assert set(shards.notes) == {"source", "license"}
    raw = raw.take(np.argsort(raw.columns["image_id"]))
    shards = shards.take(np.argsort(shards.columns["image_id"]))
    assert raw.columns["image_id"].tolist() == shards.columns["image_id"].tolist()
    assert raw.split.tolist() == shards.split.tolist()
    for task in ("coarse", "fine"):
        expected, actual = raw.labels[task], shards.labels[task]
        assert isinstance(expected, MultiLabels) and isinstance(actual, MultiLabels)
        assert expected.classes == actual.classes
        np.testing.assert_array_equal(expected.indptr, actual.indptr)
        np.testing.assert_array_equal(expected.indices, actual.indices)
    for a, b in zip(raw.image[::7], shards.image[::7], strict=True):
        assert raw.source.read(int(a)) == shards.source.read(int(b))
