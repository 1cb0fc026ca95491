"""Download files from the web, complete and checked; an interrupted download resumes where it stopped."""

import hashlib
import http.client
import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from manyeyes.io.files import (
    DISK_FULL,
    errors_that_name,
    exclusive_lock,
    make_folder,
    sync_folder,
    write_all,
    write_text,
)
from manyeyes.io.parsing import parse_json
from manyeyes.io.steps import announce

Progress = Callable[[int, int | None], None]  # called with the bytes done and the total, if that is known

RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)  # pauses before further attempts, from the first again after any progress
TIMEOUT_SECONDS = 60.0  # without a byte, until a connection counts as lost
CHUNK_BYTES = 1 << 20
FLUSH_BYTES = 1 << 26  # that a kill loses at most
RETRIED_STATUSES = {408, 425, 429, 500, 502, 503, 504}  # a server that answers so may answer differently soon


@dataclass(frozen=True)
class RemoteFile:
    """A file on the web, and its checksum if it is published."""

    url: str
    md5: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def no_progress(done: int, total: int | None) -> None:
    """Report nothing."""


def fetch(remote: RemoteFile, folder: Path, progress: Progress = no_progress) -> Path:
    """Download a file into a folder and return its path.

    The bytes go to `NAME.part`, which a later call continues and which gets its name when it is complete and checked.
    """
    if not remote.url.startswith(("http://", "https://")):
        raise ValueError(f"Download address {remote.url!r} is neither http nor https: give a web address")
    make_folder(folder)
    path, part = folder / remote.name, folder / f"{remote.name}.part"
    with exclusive_lock(path):
        if path.exists():
            if problem := _checksum_error(path, remote.md5):
                raise ValueError(f"{path} exists, but {problem}: move it away to download it again")
            _delete(part)  # what a killed process left
            return path
        try:
            _download(remote.url, part, progress)
        except OSError as error:
            raise _with_advice(error, part) from error
        if problem := _checksum_error(part, remote.md5):
            _delete(part)
            raise ValueError(f"Download of {remote.url} is not the published file ({problem}): check the address")
        os.replace(part, path)
        sync_folder(folder)
        _delete(part)
    return path


@contextmanager
def download_progress(title: str) -> Iterator[Progress]:
    """Show a progress bar with bytes, rate and time left; without a terminal, announce what is downloaded."""
    if not sys.stderr.isatty():
        announce(title)
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    columns = (*RichProgress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def check_space(folder: Path, num_bytes: int, purpose: str, fix: str = "choose a folder on another disk") -> None:
    """Raise ValueError if the disk has no room for this many bytes."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        sizes = f"{free / 1e9:.2f} GB free and {purpose} takes {num_bytes / 1e9:.2f} GB"
        raise ValueError(f"{folder} has {sizes}: make room, or {fix}")


def _download(url: str, part: Path, progress: Progress) -> None:
    """Try until the part is complete, or until too many attempts in a row brought nothing."""
    num_failures, num_bytes = 0, _size(part)
    while reason := _attempt(url, part, progress):
        num_failures = 0 if _size(part) > num_bytes else num_failures + 1
        num_bytes = max(num_bytes, _size(part))
        if num_failures > len(RETRY_SECONDS):
            fix = "check the connection and run the same command again, which resumes the download"
            raise ValueError(f"Download of {url} failed {num_failures} times in a row ({reason}): {fix}")
        time.sleep(RETRY_SECONDS[max(num_failures - 1, 0)])


def _attempt(url: str, part: Path, progress: Progress) -> str | None:
    """Return None if the part is complete now, else the reason; raise if another attempt would not help."""
    try:
        return None if _request_rest(url, part, progress) else "the connection broke off"
    except urllib.error.HTTPError as error:
        reason = f"the server answered {error.code} {error.reason}"
        if error.code == 416:  # the part is longer than the file, so it is of another file
            _delete(part)
        elif error.code not in RETRIED_STATUSES:
            raise ValueError(f"Download of {url} failed: {reason}: check the address") from error
        return reason
    except urllib.error.URLError as error:
        return str(error.reason)
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        return str(error) or type(error).__name__


def _request_rest(url: str, part: Path, progress: Progress) -> bool:
    """Request what the part lacks and append it; return whether the part is complete now."""
    state = _read_state(part)
    num_bytes = min(_size(part), state.get("flushed", 0)) if state.get("url") == url else 0
    if num_bytes and num_bytes == state.get("size"):
        return True
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "manyeyes"})
    if num_bytes and state.get("version"):
        request.add_header("Range", f"bytes={num_bytes}-")
        request.add_header("If-Range", state["version"])  # a changed file comes from its beginning
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        content_range = str(response.headers.get("Content-Range", ""))
        start = num_bytes if response.status == 206 and content_range.startswith(f"bytes {num_bytes}-") else 0
        if response.status == 206 and not start:
            _delete(part)  # another range than the requested one: request everything next time
            return False
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        check_space(part.parent, (total or 0) - start, f"the rest of {url}")
        tag = response.headers.get("ETag", "")  # a weak one does not guarantee equal bytes
        version = tag if tag.startswith('"') else response.headers.get("Last-Modified")
        state = {"url": url, "size": total, "version": version}
        with part.open("r+b" if start else "wb", buffering=0) as file:
            with errors_that_name(part):
                file.truncate(start)
                file.seek(start)
            num_bytes = _append(response, file, start, part, state, progress)
    return total is None or num_bytes == total


def _append(
    response: Any, file: IO[bytes], num_bytes: int, part: Path, state: dict[str, Any], progress: Progress
) -> int:
    """Append what arrives, and record now and then up to where the part is on the disk."""
    flushed = _flush(file, num_bytes, part, state)
    try:
        while True:
            progress(num_bytes, state["size"])
            try:
                chunk = response.read1(CHUNK_BYTES)
            except http.client.IncompleteRead:
                return num_bytes
            if not chunk:
                return num_bytes
            with errors_that_name(part):
                write_all(file, chunk)
            num_bytes += len(chunk)
            if num_bytes - flushed >= FLUSH_BYTES:
                flushed = _flush(file, num_bytes, part, state)
    finally:
        _flush(file, num_bytes, part, state)


def _flush(file: IO[bytes], num_bytes: int, part: Path, state: dict[str, Any]) -> int:
    """Flush the part to the disk and record its size: after a power loss, the bytes behind it may be wrong."""
    with errors_that_name(part):
        os.fsync(file.fileno())
    write_text(_state_path(part), json.dumps({**state, "flushed": num_bytes}))
    return num_bytes


def _read_state(part: Path) -> dict[str, Any]:
    """Return what is known of a part; empty if that is nothing."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        state = dict(parse_json(_state_path(part).read_text(encoding="utf-8")))
        return state if state["flushed"] >= 0 else {}
    return {}


def _with_advice(error: OSError, part: Path) -> OSError:
    """Return the error of a file that also says what is done and how to go on."""
    state, space = _read_state(part), ""
    num_bytes, size = state.get("flushed", 0), state.get("size")
    if error.errno in DISK_FULL:
        space = f"free about {max(((size or 0) - num_bytes) / 1e6, 1):,.0f} MB and "
    done = f"{num_bytes / 1e6:,.1f} MB are downloaded"
    return OSError(error.errno, f"{error.strerror}; {done}: {space}run the same command again", error.filename)


def _checksum_error(path: Path, md5: str | None) -> str | None:
    if md5 is None:
        return None
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "md5").hexdigest()
    return None if actual == md5.lower() else f"its md5 is {actual} instead of {md5}"


def _state_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _delete(part: Path) -> None:
    part.unlink(missing_ok=True)
    _state_path(part).unlink(missing_ok=True)
