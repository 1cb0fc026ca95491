"""The hub's parquet shards, written here by pyarrow as the datasets library lays them out."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from manyeyes.core.population import MultiLabels
from manyeyes.data.datasets import flair
from manyeyes.data.datasets import flair_huggingface as hub
from manyeyes.data.synthetic.dataset import SyntheticImages


def picture(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (value,) * 3).save(file, "PNG")
    return file.getvalue()


def row(number: int, user: str, coarse: list[str]) -> dict[str, Any]:
    return {
        "image": {"bytes": picture(number), "path": None},
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
    """Two shards to train on, of five and of one row, and one each to validate and test."""
    ann = [row(k, "ann", ["plant", "animal"] if k % 2 else ["food"]) for k in range(5)]
    write(tmp_path / "data" / "train-00000-of-00002.parquet", ann)
    write(tmp_path / "data" / "train-00001-of-00002.parquet", [row(5, "bob", [])])
    write(tmp_path / "data" / "val-00000-of-00001.parquet", [row(6, "cid", ["food"])])
    write(tmp_path / "data" / "test-00000-of-00001.parquet", [row(7, "dan", ["music"])])
    return tmp_path


def grey(data: bytes) -> int:
    return int(np.asarray(Image.open(io.BytesIO(data)))[0, 0, 0])


def test_every_row_has_its_own_image_split_and_labels(raw: Path) -> None:
    listing = hub.read_manifest(raw)
    seen = {}
    for k in range(len(listing)):
        labels = listing.labels["coarse"]
        held = [labels.classes[i] for i in labels.nonzero(np.array([k]))[1]]
        data = listing.source.read(int(listing.image[k]))
        assert isinstance(data, bytes)
        seen[str(listing.columns["image_id"][k])] = (grey(data), str(listing.split[k]), str(listing.users[k]), held)
    assert seen == {
        "i0": (0, "train", "ann", ["food"]),
        "i1": (1, "train", "ann", ["animal", "plant"]),
        "i2": (2, "train", "ann", ["food"]),
        "i3": (3, "train", "ann", ["animal", "plant"]),
        "i4": (4, "train", "ann", ["food"]),
        "i5": (5, "train", "bob", []),
        "i6": (6, "val", "cid", ["food"]),
        "i7": (7, "test", "dan", ["music"]),
    }
    assert listing.labels["fine"].classes == ("fine animal", "fine food", "fine music", "fine plant")
    assert set(listing.notes) == {"source", "licence"}


def test_the_source_can_be_sent_to_another_process_after_it_was_read(raw: Path) -> None:
    source = hub.read_manifest(raw).source
    first = [source.read(k) for k in range(len(source))]
    again = pickle.loads(pickle.dumps(source))
    assert [again.read(k) for k in range(len(again))] == first
    assert [again.name(k) for k in range(len(again))] == [source.name(k) for k in range(len(source))]


def test_a_row_group_is_read_once_for_images_in_order(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    whole = pq.ParquetFile.read_row_group

    def counted(file: Any, group: int, **given: Any) -> Any:
        reads.append(group)
        return whole(file, group, **given)

    source = hub.read_manifest(raw).source
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for k in range(len(source)):
        source.read(k)
    assert len(reads) == 3 + 1 + 1 + 1


def test_the_converters_names_are_known_too(tmp_path: Path) -> None:
    write(tmp_path / "default" / "train" / "0000.parquet", [row(1, "ann", ["food"])])
    write(tmp_path / "default" / "validation" / "0000.parquet", [row(2, "bob", ["food"])])
    listing = hub.read_manifest(tmp_path)
    assert dict(zip(listing.users.tolist(), listing.split.tolist(), strict=True)) == {"ann": "train", "bob": "val"}


def test_a_shard_that_is_not_there_is_named(raw: Path) -> None:
    (raw / "data" / "train-00001-of-00002.parquet").unlink()
    listing = hub.read_manifest(raw)
    assert len(listing) == 7
    assert listing.notes["shards that are not there"] == {"count": 1, "first": ["train-00001-of-00002.parquet"]}


def test_repeated_images_and_users_in_two_splits_are_named(raw: Path) -> None:
    write(raw / "data" / "val-00000-of-00001.parquet", [row(0, "cid", []), row(8, "ann", [])])
    listing = hub.read_manifest(raw)
    assert listing.notes["image ids listed again, left out"]["count"] == 1
    assert listing.notes["users in two splits, kept in their first"]["count"] == 1
    splits = {(u, s) for u, s in zip(listing.users.tolist(), listing.split.tolist(), strict=True)}
    assert len(splits) == len({u for u, _ in splits})


def test_an_image_without_bytes_is_an_oserror_that_names_it(raw: Path) -> None:
    rows = [row(6, "cid", []), {**row(9, "cid", []), "image": {"bytes": None, "path": "x"}}]
    write(raw / "data" / "val-00000-of-00001.parquet", rows)
    listing = hub.read_manifest(raw)
    index = listing.columns["image_id"].tolist().index("i9")
    with pytest.raises(OSError, match="no bytes for image i9"):
        listing.source.read(int(listing.image[index]))


def test_a_folder_without_shards_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no parquet files"):
        hub.read_manifest(tmp_path)


def test_a_pointer_or_a_truncated_shard_is_named(raw: Path) -> None:
    path = raw / "data" / "train-00000-of-00002.parquet"
    whole = path.read_bytes()
    for data in (b"version https://git-lfs.github.com/spec/v1\n", b"", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"train-00000-of-00002.* is not a whole parquet file"):
            hub.read_manifest(raw)


def test_a_file_of_no_split_or_of_other_columns_is_named(tmp_path: Path) -> None:
    write(tmp_path / "stuff.parquet", [row(1, "ann", ["food"])])
    with pytest.raises(ValueError, match="names no split"):
        hub.read_manifest(tmp_path)
    (tmp_path / "stuff.parquet").unlink()
    write(tmp_path / "train-00000-of-00001.parquet", [{"image": {"bytes": b""}, "label": 3}])
    with pytest.raises(ValueError, match="no column 'image_id' but image, label"):
        hub.read_manifest(tmp_path)


def test_a_standin_holds_the_same_as_the_raw_standin(tmp_path: Path) -> None:
    world = SyntheticImages(users=20, size=32, coarse=5, fine=12)
    flair.write_synthetic(world, tmp_path / "raw")
    hub.write_synthetic(world, tmp_path / "hub")
    one, other = flair.read_manifest(tmp_path / "raw"), hub.read_manifest(tmp_path / "hub")
    assert set(other.notes) == {"source", "licence"}
    one = one.take(np.argsort(one.columns["image_id"]))
    other = other.take(np.argsort(other.columns["image_id"]))
    assert one.columns["image_id"].tolist() == other.columns["image_id"].tolist()
    assert one.split.tolist() == other.split.tolist()
    for task in ("coarse", "fine"):
        left, right = one.labels[task], other.labels[task]
        assert isinstance(left, MultiLabels) and isinstance(right, MultiLabels)
        assert left.classes == right.classes
        np.testing.assert_array_equal(left.indptr, right.indptr)
        np.testing.assert_array_equal(left.indices, right.indices)
    for a, b in zip(one.image[::7], other.image[::7], strict=True):
        assert one.source.read(int(a)) == other.source.read(int(b))
