"""What is tested under faults: a short training run with client states, its continuation, a preparation, a download."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyeyes.cli import main
from manyeyes.data.download import archive, fetch
from manyeyes.data.store import builder, chunks, writer

NUM_USERS = 12
CHUNK_SIZE = 16  # so that a small store has several
SETTINGS = (
    *("data=store", "model=linear", "algorithm=scaffold", "algorithm.cohort_size=2", "algorithm.batch_size=3"),
    *("engine=reference", "engine.threads=1", "client_state_cache_mib=0", "checkpoint_seconds=0", "evaluate_every=2"),
)
PROGRESS = re.compile(r"\[\d\d:\d\d:\d\d\] ")  # a line of progress, where there is no terminal
RUN_FILES = ("model.safetensors", "per_class.csv", "per_user.csv")


@dataclass(frozen=True)
class Outcome:
    """How a command ended; without a code it raised, and `err` is the traceback."""

    code: int | None
    err: str


@dataclass(frozen=True)
class Workload:
    """A command on the files of a folder, and the one with which a user continues after a failure."""

    prepare: Callable[[Path], None]
    command: Callable[[Path], Sequence[str]]
    next_command: Callable[[Path], Sequence[str]]
    result: Callable[[Path], dict[str, bytes]]  # what must not differ
    says_what_is_saved: Callable[[Path], str] = lambda root: ""  # that the message of a full disk must match


def start(args: Sequence[str]) -> Outcome:
    """Run `manyeyes` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", sys.argv)  # Hydra changes it
        patch.setenv("HYDRA_FULL_ERROR", "1")
        patch.setattr(fetch, "RETRY_SECONDS", ())
        for module in (builder, chunks, writer):
            patch.setattr(module, "CHUNK_SIZE", CHUNK_SIZE)
        patch.setattr(archive, "_fingerprint", lambda path: str(path.stat().st_size))  # restored files are new
        try:
            code: int | None = main(args)
        except BaseException:
            code = None
            traceback.print_exc()
    lines = err.getvalue().splitlines(keepends=True)
    return Outcome(code, "".join(line for line in lines if not PROGRESS.match(line)))


def succeed(args: Sequence[str]) -> None:
    outcome = start(args)
    assert outcome.code == 0, outcome.err


def write_images(root: Path) -> None:
    """Write the raw images: four of each user, in two classes."""
    rng = np.random.default_rng(0)
    for user in range(NUM_USERS):
        for image in range(4):
            path = root / "raw" / f"user{user}" / "ab"[image % 2] / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(path)


def prepare_command(root: Path) -> Sequence[str]:
    folders = ("--raw", str(root / "raw"), "--out", str(root / "store"))
    return ("data", "prepare", "folder", *folders, "--size", "8", "--processes", "1")


def prepare_jpeg_command(root: Path) -> Sequence[str]:
    return (*prepare_command(root), "--encoding", "jpeg")


@cache
def store_files() -> dict[str, bytes]:
    """Return the files of a prepared store, which is only made once."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        write_images(Path(folder))
        succeed(prepare_command(Path(folder)))
        return files_below(Path(folder, "store"))


def copy_store(root: Path) -> None:
    (root / "store").mkdir(parents=True)
    for name, data in store_files().items():
        (root / "store" / name).write_bytes(data)


def train_command(root: Path, rounds: int = 4) -> Sequence[str]:
    return ("run", *SETTINGS, f"data.path={root / 'store'}", f"rounds={rounds}", f"folder={root / 'runs' / 'a'}")


def resume_command(root: Path) -> Sequence[str]:
    return ("run", f"resume={root / 'runs' / 'a'}", "rounds=4")


def continue_training(root: Path) -> Sequence[str]:
    """Return the command after a failure: a run without a checkpoint starts again in its folder."""
    has_checkpoint = (root / "runs" / "a" / "checkpoint.safetensors").exists()
    return resume_command(root) if has_checkpoint else train_command(root)


def saved_message(root: Path) -> str:
    """Return what the message of a full disk must say of a run that has a checkpoint."""
    if not (root / "runs" / "a" / "checkpoint.safetensors").exists():
        return ""
    return rf"the run is saved up to round \d+: free .* and continue with `manyeyes run resume={re.escape(str(root))}"


def write_two_rounds(root: Path) -> None:
    copy_store(root)
    succeed(train_command(root, rounds=2))


def run_results(root: Path) -> dict[str, bytes]:
    """Return the results of a run: its model, its tables and its events without the measured seconds."""
    folder = root / "runs" / "a"
    events = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    lines = [{name: value for name, value in event.items() if name != "seconds"} for event in events]
    names = json.dumps(sorted(path.name for path in folder.iterdir() if path.name != ".lock"))
    results = {name: (folder / name).read_bytes() for name in RUN_FILES}
    return {**results, "events": json.dumps(lines).encode(), "names": names.encode()}


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def store_results(root: Path) -> dict[str, bytes]:
    names = "\n".join(sorted(path.name for path in root.iterdir() if path.name != "raw"))
    meta = (root / "store" / "meta.json").read_bytes().replace(str(root).encode(), b"")
    return {**files_below(root / "store"), "names": names.encode(), "meta.json": meta}


def downloaded_results(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_below(root).items() if not name.endswith(".lock")}


@cache
def archive_bytes() -> bytes:
    """Return a zip archive of three files."""
    rng, file = np.random.default_rng(0), io.BytesIO()
    with zipfile.ZipFile(file, "w") as content:
        for name in ("images/1.jpg", "images/2.jpg", "labels.csv"):
            content.writestr(zipfile.ZipInfo(name), rng.bytes(5000))
    return file.getvalue()


@cache
def server_url() -> str:
    """Return the address of an archive on a server in this process, which can send the rest of a file."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, requested = archive_bytes(), self.headers.get("Range", "bytes=0-")
            begin = int(requested.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - begin))
            self.send_header("ETag", '"1"')
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body[begin:])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    os.environ["no_proxy"] = "127.0.0.1"
    return f"http://127.0.0.1:{server.server_port}/images.zip"


def download(args: list[str]) -> int:
    """Download and extract an archive without a published checksum, as `manyeyes data prepare --download` does."""
    url, folder = args
    archive.extract(fetch.fetch(fetch.RemoteFile(url), Path(folder)), Path(folder))
    return 0


def download_command(root: Path) -> Sequence[str]:
    return ("tests.faults.workloads:download", server_url(), str(root / "raw"))


WORKLOADS = {
    "train": Workload(copy_store, train_command, continue_training, run_results, saved_message),
    "resume": Workload(write_two_rounds, resume_command, continue_training, run_results, saved_message),
    "prepare": Workload(write_images, prepare_command, prepare_command, store_results),
    "prepare jpeg": Workload(write_images, prepare_jpeg_command, prepare_jpeg_command, store_results),
    "download": Workload(lambda root: None, download_command, download_command, downloaded_results),
}


@contextmanager
def empty_folder(root: Path) -> Iterator[Path]:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    yield root
    shutil.rmtree(root, ignore_errors=True)
