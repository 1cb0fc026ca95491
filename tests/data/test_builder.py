"""A store whose writer was interrupted: the same command continues it, to the same bytes."""

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
from manyeyes.data.store import builder, writer
from manyeyes.data.store.chunks import CHUNK_SIZE
from manyeyes.data.store.reader import open_population
from manyeyes.data.store.writer import write_store
from tests.damage import flip_bit
from tests.data.manifests import NUM_IMAGES, folder_contents


def interrupt_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the writer after the last image."""

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_write_other_files", interrupt)


@pytest.mark.fast_cases("full disk")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            f"full; {3 * CHUNK_SIZE} of {NUM_IMAGES} .* free about 1 MB and run the same",
        ),
        (KeyboardInterrupt(), f"stopped; {3 * CHUNK_SIZE} of {NUM_IMAGES} images are done: run the same command again"),
    ],
    ids=["full disk", "Ctrl-C"],
)
def test_an_interrupted_store_is_continued_by_the_same_command(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, error: BaseException, message: str
) -> None:
    write_store(manifest, tmp_path / "complete", 8)
    add = builder.StoreBuilder.add

    def fail(self: builder.StoreBuilder, chunk: Any) -> None:
        if len(self.chunks) == 3:
            with self.images.open("ab") as file:
                file.write(chunk.data[:999])
            raise error
        add(self, chunk)

    monkeypatch.setattr(builder.StoreBuilder, "add", fail)
    with pytest.raises(type(error), match=message):
        write_store(manifest, tmp_path / "s", 8)
    with pytest.raises(ValueError, match="s is not complete: run its `manyeyes data prepare` command again"):
        open_population(tmp_path / "s")
    monkeypatch.undo()
    reports: list[int] = []
    write_store(manifest, tmp_path / "s", 8, progress=lambda done, total: reports.append(done))
    assert reports[0] == 3 * CHUNK_SIZE
    assert folder_contents(tmp_path / "s") == folder_contents(tmp_path / "complete")


@pytest.mark.slow
def test_other_settings_start_again(tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at_the_end(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_store(manifest, tmp_path / "s", 16)
    monkeypatch.undo()
    reports: list[int] = []
    write_store(manifest, tmp_path / "s", 8, progress=lambda done, total: reports.append(done))
    assert reports[0] == 0
    assert open_population(tmp_path / "s").image_shape == (8, 8, 3)


def test_continuing_frees_space_before_writing(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at_the_end(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_store(manifest, tmp_path / "s", 8)
    images = tmp_path / ".s.preparing" / "store" / "images.npy"
    size = images.stat().st_size
    with images.open("ab") as file:
        file.write(bytes(999))  # of a chunk for which there was no space
    sizes = []
    monkeypatch.setattr(builder, "write_text", lambda *_: sizes.append(images.stat().st_size))
    with pytest.raises(KeyboardInterrupt):
        write_store(manifest, tmp_path / "s", 8)
    assert sizes == [size]


@pytest.mark.slow
def test_images_of_another_folder_start_again(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(manifest.source, Files)
    for name in manifest.source.paths:
        Image.new("RGB", (8, 8), "red").save(tmp_path / name)
    interrupt_at_the_end(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_store(manifest, tmp_path / "s", 8)
    monkeypatch.undo()
    write_store(replace(manifest, source=replace(manifest.source, root=tmp_path)), tmp_path / "s", 8)
    population = open_population(tmp_path / "s")
    assert (population.pixels(np.arange(len(population))) == (255, 0, 0)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "processes", "kills"), [("raw", 1, 20), ("jpeg", 1, 10), ("raw", 2, 3)])
def test_a_store_killed_at_random_times_and_continued_is_the_same(
    tmp_path: Path, manifest: Manifest, encoding: str, processes: int, kills: int
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["manyeyes.data.store.reader"])  # or each process would spend its time on imports

    def start(name: str) -> multiprocessing.process.BaseProcess:
        options = {"encoding": encoding, "processes": processes}
        process = context.Process(target=write_store, args=(manifest, tmp_path / name, 8), kwargs=options)
        process.start()
        return process

    start("first").join()  # which also waits for the server
    began = time.monotonic()
    start("complete").join()
    seconds = time.monotonic() - began
    rng = np.random.default_rng(kills)
    for number in range(kills):
        process = start("s")
        process.join(seconds * rng.random())
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        if (tmp_path / "s").exists():  # it was faster, and starts again
            assert folder_contents(tmp_path / "s") == folder_contents(tmp_path / "complete"), number
            shutil.rmtree(tmp_path / "s")
            shutil.rmtree(tmp_path / ".s.preparing", ignore_errors=True)
    write_store(manifest, tmp_path / "s", 8, encoding=encoding)
    assert folder_contents(tmp_path / "s") == folder_contents(tmp_path / "complete")
    assert not (tmp_path / ".s.preparing").exists()


@pytest.mark.fast_cases("3")
@pytest.mark.parametrize("kill_at", range(9))
def test_a_store_killed_at_each_step_of_the_end_and_continued_is_the_same(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    """An exception that nothing catches leaves the same files as a kill between two steps."""
    write_store(manifest, tmp_path / "complete", 8, encoding="jpeg")
    steps = 0

    class Killed(BaseException):
        pass

    def step(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > kill_at:
                raise Killed
            return call(*args, **options)

        return counted

    for name in ("atomic_write", "write_bytes", "write_text", "sync_folder"):
        monkeypatch.setattr(writer, name, step(getattr(writer, name)))
    monkeypatch.setattr(shutil, "rmtree", step(shutil.rmtree))
    with suppress(Killed):
        write_store(manifest, tmp_path / "s", 8, encoding="jpeg")
    monkeypatch.undo()
    if not (tmp_path / "s").exists():
        write_store(manifest, tmp_path / "s", 8, encoding="jpeg")
    assert folder_contents(tmp_path / "s") == folder_contents(tmp_path / "complete")


@pytest.mark.slow
def test_a_truncated_log_is_used_up_to_its_last_complete_line(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store(manifest, tmp_path / "complete", 8)
    interrupt_at_the_end(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_store(manifest, tmp_path / "s", 8)
    monkeypatch.undo()
    partial = tmp_path / ".s.preparing"
    text = (partial / "journal.jsonl").read_bytes()
    for length in np.random.default_rng(0).integers(len(text), size=8).tolist():
        shutil.copytree(partial, tmp_path / ".t.preparing")
        (tmp_path / ".t.preparing" / "journal.jsonl").write_bytes(text[:length] + bytes(5))
        write_store(manifest, tmp_path / "t", 8)
        assert folder_contents(tmp_path / "t") == folder_contents(tmp_path / "complete")
        shutil.rmtree(tmp_path / "t")


@pytest.mark.slow
def test_a_killed_worker_is_noticed(tmp_path: Path, manifest: Manifest) -> None:
    killed: list[int] = []

    def kill_worker(done: int, total: int) -> None:
        if done and not killed:
            worker = multiprocessing.active_children()[0]
            assert worker.pid is not None
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)

    with pytest.raises(ValueError, match="A process that converts images was killed, perhaps because memory ran out"):
        write_store(manifest, tmp_path / "s", 32, processes=2, progress=kill_worker)  # more than a pipe holds
    write_store(manifest, tmp_path / "s", 8)


@pytest.mark.slow
def test_a_log_with_a_changed_bit_is_used_up_to_the_line_before(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one in the row of an unreadable image: its example would be in the store, with a black image."""
    write_store(manifest, tmp_path / "complete", 8)
    interrupt_at_the_end(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        write_store(manifest, tmp_path / "s", 8)
    monkeypatch.undo()
    wal = tmp_path / ".s.preparing" / "journal.jsonl"
    lines = wal.read_bytes().splitlines(keepends=True)
    flip_bit(wal, 8 * (sum(map(len, lines[:4])) + lines[4].index(b'"unreadable": [[') + 16))
    reports: list[int] = []
    write_store(manifest, tmp_path / "s", 8, progress=lambda done, total: reports.append(done))
    assert reports[0] == 3 * CHUNK_SIZE
    assert folder_contents(tmp_path / "s") == folder_contents(tmp_path / "complete")
