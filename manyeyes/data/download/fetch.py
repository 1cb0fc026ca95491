"""Download: a file from the web, whole and checked; what broke off goes on where it stopped."""

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from manyeyes.io.files import exclusive_lock

Progress = Callable[[int, int | None], None]  # bytes done, and of how many where that is known

FEDERATED_VISION = "https://storage.googleapis.com/gresearch/federated-vision-datasets/"  # splits of Hsu et al. 2020
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before each further attempt; begun anew whenever something arrived
SILENCE = 60.0  # seconds without a byte until a connection counts as lost
CHUNK = 1 << 20
PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers of a server that may be another in a moment


@dataclass(frozen=True)
class RemoteFile:
    """A file on the web and what it must be, where its publisher says."""

    url: str
    md5: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def fetch(remote: RemoteFile, folder: Path, progress: Progress | None = None) -> Path:
    """The remote file in the folder, under its own name."""
    path = folder / remote.name
    download(remote.url, path, md5=remote.md5, progress=progress)
    return path


def download(
    url: str,
    path: Path,
    *,
    md5: str | None = None,
    sha256: str | None = None,
    size: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Download to `path.part`, go on from what is there already, and give it its name when every check holds."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"Download address {url!r} is neither http nor https; give one that is.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(path):
        if path.exists():
            if wrong := _wrong(path, md5, sha256, size):
                raise ValueError(f"File {path} is there already, but {wrong}; move it away to download it anew.")
            return
        part = path.with_name(path.name + ".part")
        _complete(url, part, size, progress)
        if wrong := _wrong(part, md5, sha256, size):
            _forget(part)
            raise ValueError(f"Download of {url} is not the published file: {wrong}; try again, or check the address.")
        os.replace(part, path)
        _forget(part)


@contextmanager
def download_progress(title: str) -> Iterator[Progress | None]:
    """A line with bytes, rate and time left for as long as it lasts; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Live

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Live(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr)) as live:
        task = live.add_task(title, total=None)
        yield lambda done, total: live.update(task, completed=done, total=total)


def need_space(folder: Path, needed: int, purpose: str) -> None:
    """Say so if the disk has no room for this many bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"Folder {folder} has {free / 1e9:.2f} GB free and {purpose} takes {needed / 1e9:.2f} GB; make room, or "
            "choose a folder on another disk."
        )


def _complete(url: str, part: Path, size: int | None, progress: Progress | None) -> None:
    """Attempt after attempt until the part is whole."""
    failures, most = 0, _length(part)
    while True:
        try:
            if _attempt(url, part, size, progress):
                return
            reason = "the connection broke off"
        except urllib.error.HTTPError as error:
            reason = f"the server answered {error.code} {error.reason}"
            if error.code == 416:  # the part is longer than the file: it is of another one
                _forget(part)
            elif error.code not in PASSING:
                raise ValueError(f"Download of {url} failed: {reason}; check the address.") from error
        except urllib.error.URLError as error:
            reason = str(error.reason)
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
        failures = 0 if _length(part) > most else failures + 1
        most = max(most, _length(part))
        if failures > len(PAUSES):
            raise ValueError(
                f"Download of {url} failed {failures} times in a row, last because {reason}; check the connection and "
                "run the same again: it goes on where it stopped."
            )
        time.sleep(PAUSES[max(failures - 1, 0)])


def _attempt(url: str, part: Path, size: int | None, progress: Progress | None) -> bool:
    """Ask for what is missing and append it; whether the part is whole now."""
    known = _note(part)
    have = _length(part) if known.get("url") == url else 0
    if have and have == known.get("size"):
        return True
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "manyeyes"})
    if have and known.get("version"):
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", known["version"])  # a changed file comes from its beginning
    with urllib.request.urlopen(request, timeout=SILENCE) as response:
        start = have if response.status == 206 and _starts_at(response, have) else 0
        if response.status == 206 and not start:
            _forget(part)  # an answer to another question than ours: ask for everything next time
            return False
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if size is not None and total is not None and total != size:
            _forget(part)
            raise ValueError(f"Download of {url} has {total:,} bytes where {size:,} were expected; check the address.")
        need_space(part.parent, (total or size or 0) - start, f"the rest of {url}")
        note = {"url": url, "size": total, "version": _version(response)}
        part.with_name(part.name + ".json").write_text(json.dumps(note))
        with part.open("r+b" if start else "wb") as file:
            file.truncate(start)
            file.seek(start)
            done = _append(response, file, start, total, progress)
            os.fsync(file.fileno())
    return total is None or done == total


def _append(response: Any, file: IO[bytes], done: int, total: int | None, progress: Progress | None) -> int:
    while True:
        if progress:
            progress(done, total)
        try:
            chunk = response.read1(CHUNK)
        except http.client.IncompleteRead:
            return done
        if not chunk:
            return done
        try:
            file.write(chunk)
            file.flush()  # what arrived is kept if this process is killed
        except OSError as error:
            raise ValueError(f"File {file.name} cannot be written ({error.strerror}); make room and go on.") from error
        done += len(chunk)


def _starts_at(response: Any, start: int) -> bool:
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _version(response: Any) -> str | None:
    """What tells one version of the remote file from another; a weak ETag cannot vouch for bytes."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _wrong(path: Path, md5: str | None, sha256: str | None, size: int | None) -> str | None:
    """In what the file differs from what is published."""
    if size is not None and _length(path) != size:
        return f"it has {_length(path):,} bytes instead of {size:,}"
    for kind, expected in (("md5", md5), ("sha256", sha256)):
        if expected is None:
            continue
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != expected.lower():
            return f"its {kind} is {found} instead of {expected}"
    return None


def _note(part: Path) -> dict[str, Any]:
    """What is known of the file that the part is a part of; nothing where that cannot be read."""
    try:
        known = json.loads(part.with_name(part.name + ".json").read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    part.with_name(part.name + ".json").unlink(missing_ok=True)
