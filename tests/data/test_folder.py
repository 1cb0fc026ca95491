"""Your own data: folders and tables, written and read back; invalid rows are named by their line."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from manyeyes.core.population import Population
from manyeyes.data.datasets import folder
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

SYNTHETIC = SyntheticImages(users=12, size=32, coarse=5, fine=9, images_per_user=4)
DOCS = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture(scope="module")
def population() -> Population:
    return make_synthetic(SYNTHETIC, processes=1)


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a CSV next to two images, a.png and b.png."""

    def write(text: str) -> Path:
        touch(tmp_path / "a.png", tmp_path / "b.png")
        (tmp_path / "table.csv").write_text(text)
        return tmp_path / "table.csv"

    return write


def classes(manifest: Manifest) -> list[list[str]]:
    """Return the names of each example's labels."""
    labels = manifest.labels["label"]
    owner, ids = labels.nonzero()
    return [sorted(labels.classes[i] for i in ids[owner == example]) for example in range(len(labels))]


@pytest.mark.parametrize("format", ["folders", "csv", "parquet"])
def test_images_users_and_labels_are_read_back(population: Population, tmp_path: Path, format: str) -> None:
    if format == "folders":
        folder.write_synthetic(SYNTHETIC, tmp_path)
    else:
        write_table(population, tmp_path, format)
    manifest = folder.read_manifest(tmp_path)
    assert len(manifest) == len(population)
    for i, path in enumerate(manifest.columns["image_id"]):
        example = int(Path(path).stem)
        encoded = manifest.source.read(int(manifest.image[i]))
        assert isinstance(encoded, bytes)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(encoded))), population.pixels(np.array([example]))[0])
        assert manifest.users[i] == population.user_name(int(population.owners(example)))
        assert classes(manifest)[i] == [population.classes[int(population.labels.targets(np.array([example]))[0])]]


def write_table(population: Population, raw: Path, format: str) -> None:
    """Write a population as PNG files and a table with all columns."""
    examples = np.arange(len(population))
    owner, ids = population.labels.nonzero()
    names = [[population.classes[i] for i in ids[owner == example]] for example in examples]
    paths = [f"{example:06d}.png" for example in examples]
    for path, pixels in zip(paths, population.pixels(examples), strict=True):
        Image.fromarray(pixels).save(raw / path)
    columns = {
        "path": paths,
        "user": [population.user_name(user) for user in population.owners(examples)],
        "label": names if format == "parquet" else ["|".join(row) for row in names],
        "split": np.asarray(population.columns["split"]).tolist(),
        "lat": np.asarray(population.columns["latitude"]).tolist(),
        "lon": np.asarray(population.columns["longitude"]).tolist(),
    }
    if format == "parquet":
        pd.DataFrame(columns).to_parquet(raw / "images.parquet")
    else:
        pd.DataFrame(columns).to_csv(raw / "images.csv", index=False)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_several_labels_splits_and_coordinates_are_read_back(
    population: Population, tmp_path: Path, format: str
) -> None:
    multi_label = population.task("coarse")
    write_table(multi_label, tmp_path, format)
    manifest = folder.read_manifest(tmp_path)
    owner, ids = multi_label.labels.nonzero()
    assert classes(manifest) == [
        sorted(multi_label.classes[i] for i in ids[owner == example]) for example in range(len(multi_label))
    ]
    for name in ("latitude", "longitude"):
        assert np.array_equal(manifest.columns[name], np.asarray(population.columns[name]))
    assert np.array_equal(manifest.split, np.asarray(population.columns["split"]))
    assert manifest.notes["split"] == "given"


def test_images_are_recognized_by_their_suffix_in_any_case_and_other_files_are_counted(tmp_path: Path) -> None:
    names = ["a.JPG", "b.jpeg", "c.PnG", "d.webp", "e.tif", "notes.txt", ".hidden.jpg"]
    touch(*(tmp_path / user / "cat" / name for user in "xyz" for name in names))
    touch(tmp_path / "README", tmp_path / "x" / "list.csv", tmp_path / "__MACOSX" / "x" / "a.jpg")
    manifest = folder.read_manifest(tmp_path)
    assert manifest.columns["image_id"][:5].tolist() == [f"x/cat/{name}" for name in names[:5]]
    assert len(manifest) == 15
    skipped = ["README", *(f"{user}/cat/notes.txt" for user in "xyz"), "x/list.csv"]
    assert sorted(name for _, name in manifest.skipped) == sorted(skipped)
    assert {reason for reason, _ in manifest.skipped} == {"not an image file"}


def test_an_image_outside_a_class_folder_is_refused(tmp_path: Path) -> None:
    touch(tmp_path / "anna" / "cat" / "a.jpg", tmp_path / "anna" / "b.jpg")
    with pytest.raises(ValueError, match=r"anna/b\.jpg is in no class folder"):
        folder.read_manifest(tmp_path)


def test_classes_that_are_numbers_are_in_their_order(table: Callable[[str], Path]) -> None:
    manifest = folder.read_manifest(table("path,user,label\na.png,x,10\nb.png,x,9\n"), split="per_user")
    assert manifest.labels["label"].classes == ("9", "10")


def test_equal_numbers_with_different_spelling_have_one_order(table: Callable[[str], Path]) -> None:
    names = "|".join("0" * zeros + "1" for zeros in range(8))  # a set of them has another order in every process
    manifest = folder.read_manifest(table(f"path,user,label\na.png,u,{names}\nb.png,v,1\n"), split="per_user")
    assert manifest.labels["label"].classes == tuple(sorted(names.split("|")))


def test_without_a_split_column_users_are_split_or_the_images_of_each_user(
    population: Population, tmp_path: Path
) -> None:
    folder.write_synthetic(SYNTHETIC, tmp_path)
    by_users = folder.read_manifest(tmp_path, split="users", seed=1)
    assert {len(set(by_users.split[by_users.users == user])) for user in set(by_users.users)} == {1}
    assert set(by_users.split) == {"train", "val", "test"}
    per_user = folder.read_manifest(tmp_path, split="per_user", seed=1)
    assert {(per_user.split[per_user.users == user] == "test").sum() for user in set(per_user.users)} == {1}
    assert np.array_equal(per_user.split, folder.read_manifest(tmp_path, split="per_user", seed=1).split)
    assert not np.array_equal(per_user.split, folder.read_manifest(tmp_path, split="per_user", seed=2).split)


def test_a_table_that_pandas_wrote_reads(tmp_path: Path) -> None:
    touch(tmp_path / "a.png", tmp_path / "b.png")
    rows = {
        "path": ["a.png", "b.png"],
        "user": [7, 8],
        "label": [["x", "y"], ["x"]],
        "lat": [1.5, None],
        "lon": [2, None],
    }
    pd.DataFrame({**rows, "split": ["train", "test"]}).to_parquet(tmp_path / "table.parquet")
    manifest = folder.read_manifest(tmp_path / "table.parquet")
    assert manifest.users.tolist() == ["7", "8"]
    assert classes(manifest) == [["x", "y"], ["x"]]
    assert manifest.columns["latitude"].tolist()[0] == 1.5
    assert np.isnan(manifest.columns["longitude"][1])


def test_a_table_that_a_spreadsheet_wrote_reads(table: Callable[[str], Path]) -> None:
    manifest = folder.read_manifest(
        table("\ufeffpath,user,label,lat,lon\r\na.png,Ann ,cat | dog,1,2\r\nb.png,Bo,cat,,\r\n"), split="per_user"
    )
    assert manifest.users.tolist() == ["Ann", "Bo"]
    assert classes(manifest) == [["cat", "dog"], ["cat"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,user,lable\na.png,x,cat\n", r"table.csv has no column 'label', only path, user, lable"),
        ("path,user,label,row\na.png,x,cat,1\n", r"table.csv, line 2: a dataset has a column 'row' of its own: rename"),
        ("path,user\na.png,x\n", r"table.csv has no column 'label', only path, user"),
        ("path,user,label,lat\na.png,x,cat,1\n", r"table.csv, line 2: lon is missing: give both columns, or none"),
        ("path,user,label\na.png,x,cat\nc.png,x,cat\n", r"table.csv, line 3: file .*c\.png does not exist$"),
        (
            "path,user,label\nc.png,x,cat\nd.png,x,cat\n",
            r"line 2: file .*c\.png does not exist, and 1 more are missing",
        ),
        ("path,user,label\na.png,x,\n", r"line 2: the label is empty"),
        ("path,user,label\na.png,x,cat|\n", r"line 2: the label is empty"),
        ("path,user,label\na.png,x,cat\nb.png,,cat\n", r"line 3: the user is empty"),
        ("path,user,label\n,x,cat\n", r"line 2: the path is empty"),
        (
            "path,user,label\na.png,x,cat\nb.png,x\n",
            r"line 3: the line does not have one cell for each of path, user, label",
        ),
        ("path,user,label\na.png,x,cat,dog\n", r"line 2: the line does not have one cell for each"),
        ("path,user,label,split\na.png,x,cat,dev\n", r"line 2: the split is 'dev': give train, val or test"),
        (
            "path,user,label,split\na.png,x,cat,train\nb.png,x,cat,\n",
            r"line 3: the split is empty, unlike in other rows: give",
        ),
        ("path,user,label,lat,lon\na.png,x,cat,north,1\n", r"line 2: lat is 'north': give degrees"),
        ("path,user,label\n", r"table.csv has no images"),
        ("", r"table.csv has no column 'path', only none"),
    ],
)
def test_a_bad_row_is_refused_by_its_line(table: Callable[[str], Path], text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        folder.read_manifest(table(text))


@pytest.mark.parametrize(
    "content",
    ["path,user,label\na.png,Zoë,x\n".encode("latin-1"), b'path,user,label\n"a.png,u,x\n' + b"b.png,u,x\n" * 20_000],
    ids=["not UTF-8", "open quote"],
)
def test_a_table_that_is_not_csv_in_utf8_is_named(table: Callable[[str], Path], content: bytes) -> None:
    path = table("")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"table\.csv cannot be read .* save it as CSV in UTF-8"):
        folder.read_manifest(path)


def test_a_file_whose_name_is_not_utf8_is_named(tmp_path: Path) -> None:
    touch(tmp_path / "anna" / "cat" / os.fsdecode(b"caf\xe9.jpg"))
    with pytest.raises(ValueError, match=r"anna/cat/caf.*\.jpg' has a name that is not UTF-8: rename it"):
        folder.read_manifest(tmp_path)


@pytest.mark.parametrize("path", ["../secret.png", "a/../../b.png", "/etc/passwd"])
def test_a_path_that_leaves_the_folder_of_the_table_is_refused(table: Callable[[str], Path], path: str) -> None:
    written = table(f"path,user,label\n{path},x,cat\n")
    with pytest.raises(ValueError, match=r"table\.csv, line 2: the path '.*' leaves the folder of the table"):
        folder.read_manifest(written)


def test_further_columns_of_a_table_are_kept(table: Callable[[str], Path]) -> None:
    text = "path,user,label,age,device,code\na.png,x,cat,31,phone,007\nb.png,x,cat,,camera,012\n"
    columns = folder.read_manifest(table(text), split="per_user").columns
    np.testing.assert_array_equal(columns["age"], [31, np.nan])
    assert columns["device"].tolist() == ["phone", "camera"]
    assert columns["code"].tolist() == ["007", "012"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "20"], [1, 20]),
        (["1", "2.5"], [1.0, 2.5]),
        ([True, False], [True, False]),
        (["x", ""], ["x", ""]),
        ([None, "y"], ["", "y"]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
        ([3, 4], [3, 4]),
    ],
)
def test_a_column_is_numbers_where_no_cell_would_change(cells: list[Any], expected: list[Any]) -> None:
    assert folder.as_column(cells).tolist() == expected


def test_a_bad_row_of_a_parquet_is_refused_by_its_number(tmp_path: Path) -> None:
    touch(tmp_path / "a.png")
    for label in ([], None, [None]):
        frame = pd.DataFrame({"path": ["a.png"] * 2, "user": ["x"] * 2, "label": [["cat"], label]})
        frame.to_parquet(tmp_path / "table.parquet")
        with pytest.raises(ValueError, match=r"table\.parquet, row 2: the label is empty"):
            folder.read_manifest(tmp_path / "table.parquet")


def test_paths_without_a_dataset_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "table.xlsx").touch()
    for path, message in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "broken.parquet", "save it as parquet again"),
        (tmp_path / "table.xlsx", "neither a folder nor a .csv or .parquet"),
        (tmp_path, "has no images"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            folder.read_manifest(path)
    with pytest.raises(ValueError, match="Unknown split 'time': choose users, per_user"):
        folder.read_manifest(tmp_path, split="time")


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCS.read_text().split("## Ways in")[1], re.DOTALL)


def test_mnist_by_writer_becomes_a_population(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    g = np.random.default_rng(0)
    names: dict[str, Any] = {
        "writer": np.repeat(np.arange(5), 12),
        "digit": g.integers(10, size=60),
        "grey": g.integers(256, size=(60, 28, 28), dtype=np.uint8),
    }
    writer, digit, grey = names["writer"], names["digit"], names["grey"]
    (code,) = (code for code in snippets() if "mnist" in code)
    exec(code, names)
    manifest, population = names["mnist"], names["population"]
    assert isinstance(manifest, Manifest)
    assert isinstance(population, Population)
    assert manifest.users.tolist() == writer.astype(str).tolist()
    assert population.num_examples.tolist() == [12] * 5
    assert np.array_equal(population.labels.targets(np.arange(60)), digit)  # the writers are sorted
    assert np.array_equal(population.pixels(np.arange(60))[..., 0], grey)
