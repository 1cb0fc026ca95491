"""A store that was not finished, whatever ended its writer: the same command goes on, to the same bytes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyeyes.data.manifest import Files, Manifest
from manyeyes.data.store import builder as preparing
from manyeyes.data.store import reader as store
from manyeyes.data.store import writer as writing
from manyeyes.data.store.chunks import CHUNK
from tests.data.manifests import COUNT, contents


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
    tmp_path: Path, given: Manifest, monkeypatch: pytest.MonkeyPatch, error: BaseException, sentence: str
) -> None:
    store.write(given, tmp_path / "whole", 8)
    add = preparing.StoreBuilder.add

    def fail(self: preparing.StoreBuilder, chunk: Any) -> None:
        if len(self.done) == 3:
            with self.images.open("ab") as file:
                file.write(chunk.data[:999])
            raise error
        add(self, chunk)

    monkeypatch.setattr(preparing.StoreBuilder, "add", fail)
    with pytest.raises(type(error), match=sentence):
        store.write(given, tmp_path / "s", 8)
    with pytest.raises(ValueError, match="s is half made: give its prepare command again to go on"):
        store.open(tmp_path / "s")
    monkeypatch.undo()
    told: list[int] = []
    store.write(given, tmp_path / "s", 8, progress=lambda done, total: told.append(done))
    assert told[0] == 3 * CHUNK
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def test_other_settings_start_anew(tmp_path: Path, given: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.write(given, tmp_path / "s", 16)
    monkeypatch.undo()
    told: list[int] = []
    store.write(given, tmp_path / "s", 8, progress=lambda done, total: told.append(done))
    assert told[0] == 0
    assert store.open(tmp_path / "s").image_shape == (8, 8, 3)


def test_going_on_makes_room_before_it_writes(tmp_path: Path, given: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_images_of_another_folder_start_anew(tmp_path: Path, given: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
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
    tmp_path: Path, given: Manifest, encoding: str, processes: int, kills: int
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["manyeyes.data.store.reader"])  # or each process would spend its life in imports

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
    tmp_path: Path, given: Manifest, monkeypatch: pytest.MonkeyPatch, at: int
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
    monkeypatch.setattr(shutil, "rmtree", step(shutil.rmtree))
    with suppress(Killed):
        store.write(given, tmp_path / "s", 8, encoding="jpeg")
    monkeypatch.undo()
    if not (tmp_path / "s").exists():
        store.write(given, tmp_path / "s", 8, encoding="jpeg")
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def test_a_journal_that_was_cut_anywhere_is_used_as_far_as_it_goes(
    tmp_path: Path, given: Manifest, monkeypatch: pytest.MonkeyPatch
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


def test_a_worker_that_is_killed_is_noticed(tmp_path: Path, given: Manifest) -> None:
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
