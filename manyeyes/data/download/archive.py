"""Extract zip and tar archives into a folder, completely or not at all; unsafe members are refused."""

import gzip
import json
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import IO, Any, Self

from manyeyes.data.clean_spawn import process_pool
from manyeyes.data.download.fetch import CHUNK_BYTES, Progress, check_space, no_progress
from manyeyes.io.files import exclusive_lock, make_folder, write_text
from manyeyes.io.parsing import named_if_damaged

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
MARKER_FOLDER = ".extracted"  # contains a file for each archive that is completely in the folder

MAX_EXPANSION, SPARE_BYTES = 20, 2**26  # unpacked bytes for each of an archive, and more; images expand by 1, CSV by 5

Member = tuple[str, IO[bytes] | None]  # name and content; None for a folder


class TooLargeError(Exception):
    """An archive has more content than it may have."""


class LimitedReader:
    """A stream of an archive, from which at most `max_bytes` can be read."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes; raise TooLargeError at the limit."""
        data = self._stream.read(size if size >= 0 else self._max_bytes + 1)
        self._max_bytes -= len(data)
        if self._max_bytes < 0:
            raise TooLargeError
        return data


def extract(archive: Path, into: Path) -> None:
    """Extract an archive into a folder, unless it was extracted there before."""
    if not archive.name.endswith(SUFFIXES):
        raise ValueError(f"Archive {archive} is not one of {', '.join(SUFFIXES)}: give one of these")
    if not archive.is_file():
        raise ValueError(f"Archive {archive} does not exist: check the path")
    marker = into / MARKER_FOLDER / archive.name
    make_folder(marker.parent)
    with exclusive_lock(marker):
        if marker.is_file() and marker.read_text() == _fingerprint(archive):
            return
        size = archive.stat().st_size  # of a tar, which may be compressed, this is the least it can be
        if archive.name.endswith(".zip") and zipfile.is_zipfile(archive):
            with named_if_damaged(archive, "download it again"), zipfile.ZipFile(archive) as file:
                size = sum(member.file_size for member in file.infolist())
            if size > max_unpacked_bytes(archive):
                raise _too_large(archive)
        check_space(into, size, f"the content of {archive}")
        unpacked = marker.with_name(archive.name + ".unpacked")
        shutil.rmtree(unpacked, ignore_errors=True)  # of a process that was killed
        try:
            unpacked.mkdir()
            _unpack(archive, unpacked)
            _merge(unpacked, into)
            os.sync()  # the marker must not be there without the files; a flush of each would take hours
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
        write_text(marker, _fingerprint(archive))


def extract_all(archives: Sequence[Path], into: Path, progress: Progress = no_progress) -> None:
    """Extract archives into one folder, one per core at a time; the first that fails stops the rest."""
    if not archives:
        return
    done, total = 0, sum(archive.stat().st_size for archive in archives if archive.is_file())
    with process_pool(min(os.cpu_count() or 1, len(archives))) as pool:
        for archive, _ in zip(archives, pool.map(extract, archives, repeat(into)), strict=True):
            done += archive.stat().st_size
            progress(done, total)


def max_unpacked_bytes(archive: Path) -> int:
    """Return how large the content of an archive of images or tables may be."""
    return MAX_EXPANSION * archive.stat().st_size + SPARE_BYTES


def _too_large(archive: Path) -> ValueError:
    limit = f"{max_unpacked_bytes(archive) / 1e6:,.0f} MB, {MAX_EXPANSION} times its size"
    return ValueError(f"Archive {archive} was not extracted: it has more than {limit}: get it from its publisher")


def _unpack(archive: Path, into: Path) -> None:
    try:
        for name, content in _zip_members(archive) if archive.name.endswith(".zip") else _tar_members(archive):
            _check_name(archive, name)
            target = into / name
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file, CHUNK_BYTES)
    except TooLargeError:
        raise _too_large(archive) from None
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"Archive {archive} is truncated or damaged ({error}): download it again") from error
    except OSError as error:
        reason = f"cannot be extracted into {into.parents[1]} ({error.strerror or error})"
        raise ValueError(f"Archive {archive} {reason}: make room, or check the permissions") from error


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refusal(archive, member.filename, "is a link or a device")
            if member.flag_bits & 1:
                raise _refusal(archive, member.filename, "is encrypted")
            yield member.filename, None if member.is_dir() else file.open(member)


def _tar_members(archive: Path) -> Iterator[Member]:
    with archive.open("rb") as raw:
        unpacked: Any = raw if archive.name.endswith(".tar") else gzip.GzipFile(fileobj=raw)
        stream: Any = LimitedReader(unpacked, max_unpacked_bytes(archive))
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_StrictTarInfo, bufsize=CHUNK_BYTES) as file:
            for member in file:
                if not (member.isreg() or member.isdir()):
                    raise _refusal(archive, member.name, "is a link or a device")
                yield member.name, file.extractfile(member)
                file.members = []  # type: ignore[attr-defined]  # or a million headers stay in memory
            while stream.read(CHUNK_BYTES):  # on to gzip's own checksum
                pass


class _StrictTarInfo(tarfile.TarInfo):
    """A header; a cut or broken one, which tarfile takes for the end, is an error."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf == bytes(tarfile.BLOCKSIZE):
                raise  # the real end
            raise tarfile.ReadError("its end is missing") from error


def _check_name(archive: Path, name: str) -> None:
    """Refuse a name that leaves the folder on any system."""
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or ":" in parts[0] or "\0" in name:
        raise _refusal(archive, name, "leads out of the folder")
    if parts[0] == MARKER_FOLDER:
        raise _refusal(archive, name, "would overwrite the record of extracted archives")


def _refusal(archive: Path, name: str, reason: str) -> ValueError:
    return ValueError(f"Archive {archive} was not extracted: its member {name!r} {reason}: get it from its publisher")


def _merge(unpacked: Path, into: Path) -> None:
    """Move every file to its place; one that exists there is replaced."""
    for folder, folders, files in os.walk(unpacked):
        target = into / Path(folder).relative_to(unpacked)
        for name in folders:
            (target / name).mkdir(exist_ok=True)
        for name in files:
            os.replace(Path(folder, name), target / name)


def _fingerprint(archive: Path) -> str:
    """Return what distinguishes this archive from another one of its name."""
    status = archive.stat()
    return json.dumps({"bytes": status.st_size, "modified": status.st_mtime_ns})
