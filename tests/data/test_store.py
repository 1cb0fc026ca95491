"""A store: what goes in comes out; it is whole or not there; and it says what is wrong."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyeyes.data import preparing, store, writing
from manyeyes.data.chunks import CHUNK
from manyeyes.data.listing import Files, Listing, Pixels
from manyeyes.population import MultiLabels, SingleLabels

COUNT = 10 * CHUNK + 7


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Listing:
    """Examples of 60 users in disorder, with single and multiple labels; every 50th image is not there."""
    root = tmp_path_factory.mktemp("raw")
    names = [f"{number}.png" for number in range(COUNT)]
    for number, name in enumerate(names):
        if number % 50:
            Image.new("RGB", (8, 8), (number % 251,) * 3).save(root / name)
    chance = np.random.default_rng(0)
    image = chance.permutation(COUNT)
    return Listing(
        dataset="painted",
        source=Files(root, names),
        image=image,
        users=np.char.mod("user%d", chance.integers(60, size=COUNT)),
        split=np.where(chance.random(COUNT) < 0.3, "test", "train"),
        labels={
            "single": SingleLabels(image % 7, tuple("abcdefg")),
            "multi": MultiLabels.of([list(range(k % 4)) for k in image.tolist()], ("x", "y", "z")),
        },
        columns={"image_id": np.char.mod("id%d", image), "latitude": image / 7.0},
        notes={"licence": "none", "count": np.int64(COUNT), "root": Path("raw")},
    )


def few(count: int = 6, **changes: Any) -> Listing:
    """One example for each of some images."""
    some = Listing(
        "few",
        Pixels(np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 3), np.uint8)),
        np.arange(count),
        np.array(["b", "a"] * (count // 2)),
        np.array(["train"] * count),
        {"task": SingleLabels(np.zeros(count, np.int64), ("all",))},
    )
    return replace(some, **changes)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))}


def jpeg(size: int = 4, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), (200, 30, 40)).save(file, "JPEG", **options)
    return file.getvalue()


def in_files(folder: Path, files: dict[str, bytes], **changes: Any) -> Listing:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    count = len(files)
    labels = {"task": SingleLabels(np.zeros(count, np.int64), ("all",))}
    users = np.array(["u"] * count)
    some = Listing("files", Files(folder, list(files)), np.arange(count), users, np.array(["train"] * count), labels)
    return replace(some, **changes)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_what_goes_in_comes_out(tmp_path: Path, given: Listing, encoding: str) -> None:
    store.write(given, tmp_path / "s", 8, encoding=encoding)
    people = store.open(tmp_path / "s")
    kept = np.flatnonzero(given.image % 50 != 0)
    assert len(people) == len(kept)
    assert people.names is not None
    assert people.names.tolist() == sorted(set(given.users.tolist()))
    where = {name: place for place, name in enumerate(given.columns["image_id"].tolist())}
    source = np.array([where[name] for name in np.asarray(people.columns["image_id"]).tolist()])
    np.testing.assert_array_equal(np.sort(source), kept)
    np.testing.assert_array_equal(people.names[people.owners(np.arange(len(people)))], given.users[source])
    for name in ("split", "latitude"):
        expected = given.split if name == "split" else given.columns[name]
        np.testing.assert_array_equal(people.columns[name], expected[source])
    for task in ("single", "multi"):
        found, expected_labels = people.task(task).labels, given.labels[task].take(source)
        np.testing.assert_array_equal(np.stack(found.entries()), np.stack(expected_labels.entries()))
        assert found.classes == given.labels[task].classes
    pixels = people.pixels(np.arange(len(people)))
    assert pixels.shape == (len(kept), 8, 8, 3)
    np.testing.assert_allclose(pixels[:, 3, 3, 1], given.image[source] % 251, atol=1 if encoding == "jpeg" else 0)


def test_the_first_task_is_the_default_and_another_can_be_asked_for(tmp_path: Path, given: Listing) -> None:
    store.write(given, tmp_path / "s", 8)
    assert store.open(tmp_path / "s").classes == tuple("abcdefg")
    assert store.open(tmp_path / "s", "multi").classes == ("x", "y", "z")
    with pytest.raises(ValueError, match="no labels are called 'fine': this population has single, multi"):
        store.open(tmp_path / "s", "fine")


def test_the_summary_counts(tmp_path: Path, given: Listing) -> None:
    missing = -(-COUNT // 50)
    summary = store.write(given, tmp_path / "s", 8)
    assert (summary.users, summary.images) == (60, COUNT - missing)
    assert (summary.examples, summary.left_out) == (COUNT - missing, missing)
    assert summary.problems == {"missing": missing}
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "s").iterdir()}
    assert summary.bytes == sizes["images.npy"] + sizes["examples.parquet"]


def test_numpy_opens_the_images(tmp_path: Path) -> None:
    store.write(few(), tmp_path / "s", 4)
    images = np.load(tmp_path / "s" / "images.npy", mmap_mode="r")
    assert images[:, 0, 0, 0].tolist() == [1, 3, 5, 0, 2, 4]  # user a, then user b


def test_numbered_users_keep_their_order(tmp_path: Path) -> None:
    store.write(few(users=np.array([10, 2, 10, 2, 10, 2])), tmp_path / "s", 4)
    assert list(map(store.open(tmp_path / "s").name, range(2))) == ["2", "10"]


def test_examples_of_nobody_belong_to_a_user_called_as_their_split(tmp_path: Path) -> None:
    users = np.array(["a", "", "test", "", "", "b"])
    split = np.array(["train", "test", "train", "val", "test", "train"])
    store.write(few(users=users, split=split), tmp_path / "s", 4)
    people = store.open(tmp_path / "s")
    assert dict(zip(map(people.name, range(5)), people.sizes.tolist(), strict=True)) == {
        "a": 1,
        "b": 1,
        "test": 1,
        "test_": 2,
        "val": 1,
    }


def test_an_image_that_two_users_show_is_stored_once(tmp_path: Path) -> None:
    store.write(few(image=np.array([3, 3, 1, 1, 0, 3])), tmp_path / "s", 4)
    people = store.open(tmp_path / "s")
    assert len(people.images) == 3
    assert people.pixels(np.arange(6))[:, 0, 0, 0].tolist() == [3, 1, 3, 3, 1, 0]


def test_a_store_can_be_moved(tmp_path: Path, given: Listing) -> None:
    store.write(given, tmp_path / "s", 8)
    (tmp_path / "s").rename(tmp_path / "elsewhere")
    assert str(tmp_path).encode() not in b"".join(contents(tmp_path / "elsewhere").values())
    store.verify(tmp_path / "elsewhere")
    assert store.open(tmp_path / "elsewhere").pixels(np.arange(5)).shape == (5, 8, 8, 3)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_images_can_be_sent_to_another_process(tmp_path: Path, given: Listing, encoding: str) -> None:
    store.write(given, tmp_path / "s", 8, encoding=encoding)
    people = store.open(tmp_path / "s")
    again = pickle.loads(pickle.dumps(people))
    np.testing.assert_array_equal(again.pixels(np.arange(9)), people.pixels(np.arange(9)))


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
@pytest.mark.parametrize("ahead", [1, 10**9])
def test_rows_in_any_order_are_those_of_the_array(
    tmp_path: Path, given: Listing, monkeypatch: pytest.MonkeyPatch, encoding: str, ahead: int
) -> None:
    monkeypatch.setattr("manyeyes.data.raw.FEW", ahead)
    store.write(given, tmp_path / "s", 8, encoding=encoding)
    images = store.open(tmp_path / "s").images
    whole = images[:]
    assert whole.shape == images.shape == (COUNT, 8, 8, 3)
    chance = np.random.default_rng(0)
    for rows in (
        chance.integers(COUNT, size=300),
        np.arange(40, 90),
        np.array([], np.int64),
        np.array([[3, 3], [2, 1]]),
    ):
        np.testing.assert_array_equal(images[rows], whole[rows])
    np.testing.assert_array_equal(images[4], whole[4])
    for wrong in ([-1], [COUNT]):
        with pytest.raises(IndexError, match=f"there are {COUNT} images, and rows from"):
            images[np.array(wrong)]


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_the_number_of_processes_changes_nothing(tmp_path: Path, given: Listing, encoding: str) -> None:
    for processes in (1, 2):
        store.write(given, tmp_path / str(processes), 8, encoding=encoding, processes=processes)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_a_jpeg_of_the_right_size_is_kept_byte_for_byte(tmp_path: Path) -> None:
    data = {"a.jpg": jpeg(8, quality=40), "b.jpg": jpeg(16)}
    store.write(in_files(tmp_path / "raw", data), tmp_path / "s", 8, encoding="jpeg")
    blob = (tmp_path / "s" / "images.jpegs").read_bytes()
    first, second = (
        blob[a:b] for a, b in np.lib.stride_tricks.sliding_window_view(np.load(tmp_path / "s/offsets.npy"), 2)
    )
    assert first == data["a.jpg"]
    assert Image.open(io.BytesIO(second)).size == (8, 8)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_a_jpeg_with_bytes_too_many_is_prepared_and_read(tmp_path: Path, encoding: str) -> None:
    data, junk = jpeg(8), bytes(range(1, 9))  # decoders warn of it and lose no pixel
    table = data.index(b"\xff\xdb")
    files = {"head.jpg": data[:table] + junk + data[table:], "end.jpg": data[:-2] + junk + data[-2:]}
    store.write(in_files(tmp_path / "raw", files), tmp_path / "s", 8, encoding=encoding)
    pixels = store.open(tmp_path / "s").pixels(np.arange(2))
    assert np.abs(pixels.astype(int) - np.asarray(Image.open(io.BytesIO(data)))).max() <= 2  # encoded again


def test_every_kind_of_bad_file_is_counted_by_name(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    grey = io.BytesIO()
    Image.new("L", (4, 4)).save(grey, "PNG")
    files = {
        "good.jpg": jpeg(),
        "empty.jpg": b"",
        "text.jpg": b"not found" * 9,
        "cut.jpg": jpeg(64)[:-20],
        "turned.jpg": jpeg(exif=exif),
        "grey.jpg": grey.getvalue(),
        "new\nline.jpg": b"",
    }
    given = in_files(tmp_path / "raw", files)
    (tmp_path / "raw" / "good.jpg").rename(tmp_path / "raw" / "gone.jpg")
    summary = store.write(given, tmp_path / "s", 4)
    log = (tmp_path / "s" / "prepare.log").read_text()
    assert log.splitlines() == [
        "missing\tgood.jpg",
        "empty\tempty.jpg",
        "not an image\ttext.jpg",
        "truncated\tcut.jpg",
        "rotated\tturned.jpg",
        "greyscale\tgrey.jpg",
        "wrong extension\tgrey.jpg",
        "empty\tnew\\nline.jpg",
    ]
    meta = json.loads((tmp_path / "s" / "meta.json").read_text())
    assert meta["problems"] == summary.problems
    assert (summary.problems["empty"], summary.left_out, summary.examples) == (2, 5, 2)
    assert store.open(tmp_path / "s").rows.tolist() == [4, 5]


def test_duplicate_ids_are_reported_and_shared_images_are_not(tmp_path: Path) -> None:
    ids = np.array(["one", "two", "two", "three", "four", "four"])
    image = np.array([0, 1, 2, 3, 4, 4])  # two: two images; four: one image that two users show
    summary = store.write(few(image=image, columns={"image_id": ids}), tmp_path / "s", 4)
    assert (tmp_path / "s" / "prepare.log").read_text() == "duplicate id\ttwo\n"
    assert summary.examples == 6


def test_users_in_two_splits_are_reported_unless_most_are(tmp_path: Path) -> None:
    users = np.array(["a", "a", "b", "b", "c", "c"])
    by_user = np.array(["train", "train", "train", "train", "train", "test"])
    store.write(few(users=users, split=by_user), tmp_path / "s", 4)
    assert (tmp_path / "s" / "prepare.log").read_text() == "user in two splits\tc\n"
    store.write(few(users=users, split=np.array(["train", "test"] * 3)), tmp_path / "within", 4)
    assert (tmp_path / "within" / "prepare.log").read_text() == ""


def test_without_a_size_images_must_be_alike(tmp_path: Path) -> None:
    data = {"none.jpg": b"", "a.jpg": jpeg(8), "b.jpg": jpeg(16)}
    given = in_files(tmp_path / "raw", data)
    with pytest.raises(ValueError, match=r"b.jpg is 16 x 16 pixels and others are 8 x 8: give a size"):
        store.write(given, tmp_path / "s", None)
    store.write(given, tmp_path / "s", 8)
    store.write(given.take(np.arange(2)), tmp_path / "alike", None)
    assert store.open(tmp_path / "alike").image_shape == (8, 8, 3)


def test_a_dataset_of_which_nothing_can_be_read_is_refused(tmp_path: Path) -> None:
    given = in_files(tmp_path / "raw", {"a.jpg": b"", "b.jpg": b"x"})
    with pytest.raises(ValueError, match=r"none of the 2 images can be read; the first, a.jpg, is empty"):
        store.write(given, tmp_path / "s", 4)
    assert os.listdir(tmp_path) == ["raw"]


def test_progress_is_told(tmp_path: Path, given: Listing) -> None:
    told: list[tuple[int, int]] = []
    store.write(given, tmp_path / "s", 8, progress=lambda done, total: told.append((done, total)))
    assert told == [(min(k * CHUNK, COUNT), COUNT) for k in range(12)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 0}, "size is 0: give a number of pixels from 1 to 4096"),
        ({"encoding": "png"}, "encoding is 'png': choose raw or jpeg"),
        ({"processes": 0}, "processes is 0: give at least 1"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        store.write(few(), tmp_path / "s", **{"size": 4, **changes})
    with pytest.raises(ValueError, match="few lists no examples"):
        store.write(few().take(np.array([], int)), tmp_path / "s", 4)


def test_a_folder_that_is_taken_is_refused_and_an_empty_one_is_used(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    store.write(few(), tmp_path / "s", 4)
    with pytest.raises(ValueError, match="s already holds a store: delete it, or choose another folder"):
        store.write(few(), tmp_path / "s", 4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="other already holds something else"):
        store.write(few(), tmp_path / "other", 4)
    assert sorted(os.listdir(tmp_path)) == ["other", "s"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_leads_to_where_the_store_is_made(tmp_path: Path, there: bool) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "s").symlink_to("disk/large")
    if there:
        (tmp_path / "disk" / "large").mkdir()
    store.write(few(), tmp_path / "s", 4)
    assert (tmp_path / "s").is_symlink()
    assert os.listdir(tmp_path / "disk") == ["large"]
    assert len(store.open(tmp_path / "s")) == len(few())


def test_a_mount_point_cannot_become_a_store_and_is_refused_before_the_work() -> None:
    with pytest.raises(ValueError, match=r"/ is where a disk is mounted, .* give a folder in it"):
        store.write(few(), Path("/"), 4)


def test_too_little_space_is_said_before_anything_is_done(
    tmp_path: Path, given: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ValueError, match=r"s needs 0.0 GB and its disk has 0.0 GB free: make room, or"):
        store.write(given, tmp_path / "s", 8)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            f"full; {3 * CHUNK} of {COUNT} .* make room and give the same",
        ),
        (KeyboardInterrupt(), f"stopped; {3 * CHUNK} of {COUNT} images are done and kept: give the same command again"),
    ],
    ids=["full disk", "Ctrl-C"],
)
def test_what_was_done_is_kept_and_the_same_command_goes_on(
    tmp_path: Path, given: Listing, monkeypatch: pytest.MonkeyPatch, error: BaseException, sentence: str
) -> None:
    store.write(given, tmp_path / "whole", 8)
    add = preparing.Preparing.add

    def fail(self: preparing.Preparing, chunk: Any) -> None:
        if len(self.done) == 3:
            with self.images.open("ab") as file:
                file.write(chunk.data[:999])
            raise error
        add(self, chunk)

    monkeypatch.setattr(preparing.Preparing, "add", fail)
    with pytest.raises(type(error), match=sentence):
        store.write(given, tmp_path / "s", 8)
    with pytest.raises(ValueError, match="s is half made: give its prepare command again to go on"):
        store.open(tmp_path / "s")
    monkeypatch.undo()
    told: list[int] = []
    store.write(given, tmp_path / "s", 8, progress=lambda done, total: told.append(done))
    assert told[0] == 3 * CHUNK
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def test_other_settings_start_anew(tmp_path: Path, given: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.write(given, tmp_path / "s", 16)
    monkeypatch.undo()
    told: list[int] = []
    store.write(given, tmp_path / "s", 8, progress=lambda done, total: told.append(done))
    assert told[0] == 0
    assert store.open(tmp_path / "s").image_shape == (8, 8, 3)


def test_going_on_makes_room_before_it_writes(tmp_path: Path, given: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.write(given, tmp_path / "s", 8)
    images = tmp_path / ".s.preparing" / "store" / "images.npy"
    whole = images.stat().st_size
    with images.open("ab") as file:
        file.write(bytes(999))  # of a chunk for which there was no room
    sizes = []
    monkeypatch.setattr(preparing, "write_whole", lambda *_: sizes.append(images.stat().st_size))
    with pytest.raises(KeyboardInterrupt):
        store.write(given, tmp_path / "s", 8)
    assert sizes == [whole]


def test_images_of_another_folder_start_anew(tmp_path: Path, given: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(given.source, Files)
    for name in given.source.paths:
        Image.new("RGB", (8, 8), "red").save(tmp_path / name)
    monkeypatch.setattr(writing, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.write(given, tmp_path / "s", 8)
    monkeypatch.undo()
    store.write(replace(given, source=replace(given.source, root=tmp_path)), tmp_path / "s", 8)
    made = store.open(tmp_path / "s")
    assert (made.pixels(np.arange(len(made))) == (255, 0, 0)).all()


@pytest.mark.parametrize(("encoding", "processes", "kills"), [("raw", 1, 20), ("jpeg", 1, 10), ("raw", 2, 3)])
def test_killed_at_random_and_continued_it_is_the_same(
    tmp_path: Path, given: Listing, encoding: str, processes: int, kills: int
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["manyeyes.data.store"])  # or each process would spend its life in imports

    def start(name: str) -> multiprocessing.process.BaseProcess:
        options = {"encoding": encoding, "processes": processes}
        process = context.Process(target=store.write, args=(given, tmp_path / name, 8), kwargs=options)
        process.start()
        return process

    start("first").join()  # which also waits for the server
    began = time.monotonic()
    start("whole").join()
    seconds = time.monotonic() - began
    chance = np.random.default_rng(kills)
    for number in range(kills):
        process = start("s")
        process.join(seconds * chance.random())
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        if (tmp_path / "s").exists():  # it was quicker, and begins again
            assert contents(tmp_path / "s") == contents(tmp_path / "whole"), number
            shutil.rmtree(tmp_path / "s")
            shutil.rmtree(tmp_path / ".s.preparing", ignore_errors=True)
    store.write(given, tmp_path / "s", 8, encoding=encoding)
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")
    assert not (tmp_path / ".s.preparing").exists()


@pytest.mark.parametrize("at", range(8))
def test_killed_at_each_step_of_the_end_it_is_the_same(
    tmp_path: Path, given: Listing, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A kill between two steps leaves the files as an exception there does, which nothing in the package catches."""
    store.write(given, tmp_path / "whole", 8, encoding="jpeg")
    steps = 0

    class Killed(BaseException):
        pass

    def step(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > at:
                raise Killed
            return call(*args, **options)

        return counted

    for name in ("write_whole", "write_text", "sync_folder"):
        monkeypatch.setattr(writing, name, step(getattr(writing, name)))
    monkeypatch.setattr(writing.shutil, "rmtree", step(shutil.rmtree))
    with suppress(Killed):
        store.write(given, tmp_path / "s", 8, encoding="jpeg")
    monkeypatch.undo()
    if not (tmp_path / "s").exists():
        store.write(given, tmp_path / "s", 8, encoding="jpeg")
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def test_a_journal_that_was_cut_anywhere_is_used_as_far_as_it_goes(
    tmp_path: Path, given: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(given, tmp_path / "whole", 8)
    monkeypatch.setattr(writing, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.write(given, tmp_path / "s", 8)
    monkeypatch.undo()
    half = tmp_path / ".s.preparing"
    text = (half / "journal.jsonl").read_bytes()
    for length in np.random.default_rng(0).integers(len(text), size=8).tolist():
        shutil.copytree(half, tmp_path / ".t.preparing")
        (tmp_path / ".t.preparing" / "journal.jsonl").write_bytes(text[:length] + bytes(5))
        store.write(given, tmp_path / "t", 8)
        assert contents(tmp_path / "t") == contents(tmp_path / "whole")
        shutil.rmtree(tmp_path / "t")


def test_a_worker_that_is_killed_is_noticed(tmp_path: Path, given: Listing) -> None:
    ended: list[int] = []

    def end_one(done: int, total: int) -> None:
        if done and not ended:
            worker = multiprocessing.active_children()[0]
            assert worker.pid is not None
            ended.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(ValueError, match="a process that prepares images was ended, perhaps because memory ran out"):
        store.write(given, tmp_path / "s", 32, processes=2, progress=end_one)  # more than a pipe holds
    store.write(given, tmp_path / "s", 8)


HOLDER = """
import sys
from pathlib import Path
from manyeyes.files import hold
Path(".s.preparing").mkdir()
with hold(Path("s"), Path(".s.preparing/.lock")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    holder = spawn("-c", HOLDER, stdin=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=f"s is in use by process {holder.pid}: wait for it, or choose another folder"):
        store.write(few(), tmp_path / "s", 4)
    holder.kill()
    holder.wait(60)
    store.write(few(), tmp_path / "s", 4)


def change(path: Path, **values: Any) -> None:
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | values))


def test_a_store_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(ValueError, match="s is no store: make one with manyeyes data prepare"):
        store.open(path)
    store.write(few(), path, 4)
    change(path, version=2)
    with pytest.raises(ValueError, match="s has format 2 and this manyeyes reads format 1: upgrade manyeyes"):
        store.open(path)
    change(path, version=0)
    with pytest.raises(ValueError, match="s has format 0 and this manyeyes reads format 1: prepare it again"):
        store.open(path)
    change(path, version=1)
    store.open(path)
    os.truncate(path / "images.npy", 200)
    with pytest.raises(ValueError, match=r"images.npy has 200 bytes instead of 416: copy the store again, or prepare"):
        store.open(path)
    (path / "images.npy").unlink()
    with pytest.raises(ValueError, match=r"images.npy is not there: copy the store again"):
        store.open(path)
    (path / "meta.json").write_text("{")
    with pytest.raises(ValueError, match=r"meta.json is damaged: copy the store again, or prepare it anew"):
        store.open(path)


@pytest.mark.parametrize("name", ["images.jpegs", "offsets.npy", "examples.parquet"])
def test_a_changed_byte_is_found(tmp_path: Path, given: Listing, name: str) -> None:
    store.write(given, tmp_path / "s", 8, encoding="jpeg")
    store.verify(tmp_path / "s")
    data = bytearray((tmp_path / "s" / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "s" / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} is damaged: copy the store again, or prepare it anew"):
        store.verify(tmp_path / "s")
