"""Your own data: folders and tables, written and read back, and what is wrong with them said by row."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from manyeyes.core.population import Population, SingleLabels
from manyeyes.data.datasets import folder
from manyeyes.data.manifest import Manifest
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

DOCS = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture(scope="module")
def people() -> Population:
    return make_synthetic(SyntheticImages(users=12, size=32, coarse=5, fine=9, images_per_user=4), processes=1)


def paint(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], Path]:
    """A CSV beside two images, a.png and b.png."""

    def write(text: str) -> Path:
        paint(tmp_path / "a.png", tmp_path / "b.png")
        (tmp_path / "mine.csv").write_text(text)
        return tmp_path / "mine.csv"

    return write


def classes(made: Manifest) -> list[list[str]]:
    """The names of each example's labels."""
    labels = made.labels["label"]
    owner, ids = labels.nonzero()
    return [sorted(labels.classes[i] for i in ids[owner == example]) for example in range(len(labels))]


@pytest.mark.parametrize("kind", ["tree", "csv", "parquet"])
def test_a_standin_has_the_users_labels_and_pixels_of_its_population(
    people: Population, tmp_path: Path, kind: str
) -> None:
    folder.write_synthetic(people, tmp_path, kind)
    made = folder.read_manifest(tmp_path)
    assert len(made) == len(people)
    for i, path in enumerate(made.columns["image_id"]):
        example = int(Path(path).stem)
        encoded = made.source.read(int(made.image[i]))
        assert isinstance(encoded, bytes)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(encoded))), people.pixels(np.array([example]))[0])
        assert made.users[i] == people.user_name(int(people.owners(example)))
        assert classes(made)[i] == [people.classes[people.labels.targets(np.array([example]))[0]]]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_several_labels_splits_and_places_come_back(people: Population, tmp_path: Path, kind: str) -> None:
    many = people.task("coarse")
    made = folder.read_manifest(folder.write_synthetic(many, tmp_path, kind))
    owner, ids = many.labels.nonzero()
    assert classes(made) == [sorted(many.classes[i] for i in ids[owner == e]) for e in range(len(many))]
    for name in ("latitude", "longitude"):
        assert np.array_equal(made.columns[name], np.asarray(people.columns[name]))
    assert np.array_equal(made.split, np.asarray(people.columns["split"]))
    assert made.notes["split"] == "given"


def test_images_are_known_by_their_suffix_in_any_case_and_the_rest_is_counted(tmp_path: Path) -> None:
    names = ["a.JPG", "b.jpeg", "c.PnG", "d.webp", "e.tif", "notes.txt", ".hidden.jpg"]
    paint(*(tmp_path / user / "cat" / name for user in "xyz" for name in names))
    paint(tmp_path / "README", tmp_path / "x" / "list.csv", tmp_path / "__MACOSX" / "x" / "a.jpg")
    made = folder.read_manifest(tmp_path)
    assert made.columns["image_id"][:5].tolist() == [f"x/cat/{name}" for name in names[:5]]
    assert len(made) == 15
    assert made.notes["skipped_files"] == 5


def test_an_image_outside_a_class_folder_is_refused(tmp_path: Path) -> None:
    paint(tmp_path / "anna" / "cat" / "a.jpg", tmp_path / "anna" / "b.jpg")
    with pytest.raises(ValueError, match=r"anna/b\.jpg lies in no class folder"):
        folder.read_manifest(tmp_path)


def test_classes_that_are_numbers_are_in_their_order(table: Callable[[str], Path]) -> None:
    made = folder.read_manifest(table("path,user,label\na.png,x,10\nb.png,x,9\n"), split="per_user")
    assert made.labels["label"].classes == ("9", "10")


def test_equal_numbers_written_differently_have_one_order(table: Callable[[str], Path]) -> None:
    names = "|".join("0" * zeros + "1" for zeros in range(8))  # of a set, which has another order at every start
    made = folder.read_manifest(table(f"path,user,label\na.png,u,{names}\nb.png,v,1\n"), split="per_user")
    assert made.labels["label"].classes == tuple(sorted(names.split("|")))


def test_without_a_split_users_are_split_or_each_within(people: Population, tmp_path: Path) -> None:
    folder.write_synthetic(people, tmp_path)
    whole = folder.read_manifest(tmp_path, split="users", seed=1)
    assert {len(set(whole.split[whole.users == user])) for user in set(whole.users)} == {1}
    assert set(whole.split) == {"train", "val", "test"}
    inside = folder.read_manifest(tmp_path, split="per_user", seed=1)
    assert {(inside.split[inside.users == user] == "test").sum() for user in set(inside.users)} == {1}
    assert np.array_equal(inside.split, folder.read_manifest(tmp_path, split="per_user", seed=1).split)
    assert not np.array_equal(inside.split, folder.read_manifest(tmp_path, split="per_user", seed=2).split)


def test_a_table_that_pandas_wrote_reads(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", tmp_path / "b.png")
    rows = {
        "path": ["a.png", "b.png"],
        "user": [7, 8],
        "label": [["x", "y"], ["x"]],
        "lat": [1.5, None],
        "lon": [2, None],
    }
    pd.DataFrame({**rows, "split": ["train", "test"]}).to_parquet(tmp_path / "mine.parquet")
    made = folder.read_manifest(tmp_path / "mine.parquet")
    assert made.users.tolist() == ["7", "8"]
    assert classes(made) == [["x", "y"], ["x"]]
    assert made.columns["latitude"].tolist()[0] == 1.5
    assert np.isnan(made.columns["longitude"][1])


def test_a_table_that_a_spreadsheet_wrote_reads(table: Callable[[str], Path]) -> None:
    made = folder.read_manifest(
        table("\ufeffpath,user,label,lat,lon\r\na.png,Ann ,cat | dog,1,2\r\nb.png,Bo,cat,,\r\n"), split="per_user"
    )
    assert made.users.tolist() == ["Ann", "Bo"]
    assert classes(made) == [["cat", "dog"], ["cat"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,user,lable\na.png,x,cat\n", r"mine.csv has a column 'lable': it may have path, user, label, split"),
        ("path,user\na.png,x\n", r"mine.csv has no column label"),
        ("path,user,label,lat\na.png,x,cat,1\n", r"mine.csv has no column lat or lon"),
        ("path,user,label\na.png,x,cat\nc.png,x,cat\n", r"mine.csv, line 3: there is no file .*c\.png$"),
        ("path,user,label\nc.png,x,cat\nd.png,x,cat\n", r"line 2: .*c\.png, and 1 more are missing"),
        ("path,user,label\na.png,x,\n", r"line 2: the label is empty"),
        ("path,user,label\na.png,x,cat|\n", r"line 2: the label is empty"),
        ("path,user,label\na.png,x,cat\nb.png,,cat\n", r"line 3: the user is empty"),
        ("path,user,label\n,x,cat\n", r"line 2: the path is empty"),
        ("path,user,label\na.png,x,cat\nb.png,x\n", r"line 3: it has not one cell for each of path, user, label"),
        ("path,user,label\na.png,x,cat,dog\n", r"line 2: it has not one cell for each"),
        ("path,user,label,split\na.png,x,cat,dev\n", r"line 2: the split is 'dev': give train, val or test"),
        ("path,user,label,split\na.png,x,cat,train\nb.png,x,cat,\n", r"line 3: the split is empty and other rows have"),
        ("path,user,label,lat,lon\na.png,x,cat,north,1\n", r"line 2: lat is 'north': give degrees"),
        ("path,user,label\n", r"mine.csv has no images"),
        ("", r"mine.csv has no column path"),
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
def test_a_table_that_is_no_csv_in_utf8_is_named(table: Callable[[str], Path], content: bytes) -> None:
    path = table("")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.csv cannot be read .* save it as CSV in UTF-8"):
        folder.read_manifest(path)


def test_a_file_whose_name_is_not_utf8_is_named(tmp_path: Path) -> None:
    paint(tmp_path / "anna" / "cat" / os.fsdecode(b"caf\xe9.jpg"))
    with pytest.raises(ValueError, match=r"anna/cat/caf.*\.jpg' has a name that is not UTF-8: rename it"):
        folder.read_manifest(tmp_path)


def test_a_bad_row_of_a_parquet_is_refused_by_its_number(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    for label in ([], None, [None]):
        frame = pd.DataFrame({"path": ["a.png"] * 2, "user": ["x"] * 2, "label": [["cat"], label]})
        frame.to_parquet(tmp_path / "mine.parquet")
        with pytest.raises(ValueError, match=r"mine\.parquet, row 2: the label is empty"):
            folder.read_manifest(tmp_path / "mine.parquet")


def test_what_is_no_data_is_refused(tmp_path: Path, people: Population) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "mine.xlsx").touch()
    for path, message in (
        (tmp_path / "none", "there is no"),
        (tmp_path / "broken.parquet", "cannot be read as parquet"),
        (tmp_path / "mine.xlsx", "neither a folder nor a .csv or .parquet"),
        (tmp_path, "has no images"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            folder.read_manifest(path)
    with pytest.raises(ValueError, match="the split is 'time'"):
        folder.read_manifest(tmp_path, split="time")
    with pytest.raises(ValueError, match="no folder kind called 'json'"):
        folder.write_synthetic(people, tmp_path, "json")
    with pytest.raises(ValueError, match="one label"):
        folder.write_synthetic(people.task("coarse"), tmp_path, "tree")


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCS.read_text().split("## Your own data")[1], re.DOTALL)


def test_mnist_by_writer_is_a_listing_in_five_lines() -> None:
    g = np.random.default_rng(0)
    given = {"writer": np.repeat(np.arange(5), 12), "digit": g.integers(10, size=60)}
    (code,) = (code for code in snippets() if "writer" in code)
    names = {**given, "grey": g.integers(256, size=(60, 28, 28), dtype=np.uint8)}
    exec(code, names)
    made = names["mnist"]
    assert isinstance(made, Manifest)
    assert made.users.tolist() == given["writer"].astype(str).tolist()
    assert isinstance(made.labels["digit"], SingleLabels)
    assert np.asarray(made.source.read(3)).shape == (28, 28, 3)


def test_femnist_is_a_folder_in_five_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = {"x": [[0.0] * 783 + [1.0]] * 3, "y": [4, 61, 4]}
    (tmp_path / "all_data_0.json").write_text(pd.Series({"user_data": {"f01": user, "f02": user}}).to_json())
    monkeypatch.chdir(tmp_path)
    (code,) = (code for code in snippets() if "user_data" in code)
    exec(code, {})
    made = folder.read_manifest(tmp_path / "femnist", split="per_user")
    assert made.users.tolist() == ["f01"] * 3 + ["f02"] * 3
    assert made.labels["label"].classes == ("4", "61")
    encoded = made.source.read(0)
    assert isinstance(encoded, bytes)
    assert np.asarray(Image.open(io.BytesIO(encoded)))[27, 26:].tolist() == [0, 255]
