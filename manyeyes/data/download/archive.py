"""Archive: a zip or tar becomes files in a folder, all of them or none; what would leave the folder is refused."""

import gzip
import io
import json
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Any

from manyeyes.data.clean_spawn import CleanSpawnContext
from manyeyes.data.download.fetch import CHUNK, Progress, need_space
from manyeyes.io.files import exclusive_lock

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")
MARKS = ".extracted"  # holds a file for each archive that is wholly in the folder


def extract(archive: Path, into: Path, progress: Progress | None = None) -> None:
    """Extract into the folder; an archive that was extracted there before is not touched again."""
    if not archive.name.endswith(ENDINGS):
        raise ValueError(f"Archive {archive} is none of {', '.join(ENDINGS)}; give one of these.")
    if not archive.is_file():
        raise ValueError(f"Archive {archive} does not exist; check the path.")
    mark = into / MARKS / archive.name
    mark.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(mark):
        if _read(mark) == _print(archive):
            return
        _check_space(archive, into)
        unpacked = mark.with_name(archive.name + ".unpacked")
        shutil.rmtree(unpacked, ignore_errors=True)  # of a process that was killed
        try:
            unpacked.mkdir()
            _unpack(archive, unpacked, progress)
            _merge(unpacked, into)
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
        mark.with_name(archive.name + ".part").write_text(_print(archive))
        os.replace(mark.with_name(archive.name + ".part"), mark)


def extract_all(
    archives: Sequence[Path], into: Path, processes: int | None = None, progress: Progress | None = None
) -> None:
    """Extract many archives into one folder, several at a time; the first that fails stops the rest."""
    sizes = {archive: archive.stat().st_size if archive.is_file() else 0 for archive in archives}
    done, total = 0, sum(sizes.values())
    workers = min(processes or os.cpu_count() or 1, len(archives))
    if workers <= 1:
        for archive in archives:
            extract(archive, into)
            done += sizes[archive]
            if progress:
                progress(done, total)
        return
    with ProcessPoolExecutor(workers, CleanSpawnContext()) as pool:
        jobs = {pool.submit(extract, archive, into): archive for archive in archives}
        try:
            for job in as_completed(jobs):
                job.result()
                done += sizes[jobs[job]]
                if progress:
                    progress(done, total)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _unpack(archive: Path, into: Path, progress: Progress | None) -> None:
    total = archive.stat().st_size
    try:
        members = _of_zip(archive) if archive.name.endswith(".zip") else _of_tar(archive)
        for name, content, done in members:
            target = into / _inside(name, archive)
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file, CHUNK)
            if progress:
                progress(min(done, total), total)
        if progress:
            progress(total, total)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(
            f"Archive {archive} is truncated or no archive of its kind ({error}); fetch it anew."
        ) from error
    except OSError as error:
        raise ValueError(
            f"Archive {archive} cannot be extracted into {into.parents[1]} ({error.strerror or error}); make room, or "
            "check who may write there."
        ) from error


def _of_zip(archive: Path) -> Iterator[tuple[str, IO[bytes] | None, int]]:
    """Each member's name, its content (none for a folder) and how much of the archive is read with it."""
    done = 0
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, member.filename, "is a link or a device")
            if member.flag_bits & 1:
                raise _refused(archive, member.filename, "is encrypted")
            done += member.compress_size
            yield member.filename, None if member.is_dir() else opened.open(member), done


def _of_tar(archive: Path) -> Iterator[tuple[str, IO[bytes] | None, int]]:
    with archive.open("rb") as raw:
        stream = _Watched(raw if archive.name.endswith(".tar") else gzip.GzipFile(fileobj=raw))
        with tarfile.open(fileobj=stream, mode="r:") as opened:
            for member in opened:
                if not (member.isreg() or member.isdir()):
                    raise _refused(archive, member.name, "is a link or a device")
                yield member.name, opened.extractfile(member), raw.tell()
                opened.members = []  # type: ignore[attr-defined]  # or a million headers are kept
            # tarfile takes a cut or broken header for the end, which is a block of zeros.
            if stream.last != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("its end is missing")
            while stream.read(CHUNK):  # on to gzip's own checksum
                pass


class _Watched(io.RawIOBase):
    """A stream that remembers what was read last."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        self.last = self.stream.read(size)
        return self.last

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        return self.stream.seek(position, whence)

    def tell(self) -> int:
        return self.stream.tell()


def _inside(name: str, archive: Path) -> str:
    """The name, if it stays in the folder on any system."""
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts or ":" in parts[0] or "\0" in name:
        raise _refused(archive, name, "leads out of the folder")
    if parts[0] == MARKS:
        raise _refused(archive, name, "would overwrite our notes of what is extracted")
    return name


def _refused(archive: Path, name: str, why: str) -> ValueError:
    return ValueError(
        f"Archive {archive} was not extracted, because its member {name!r} {why}; get the archive from its publisher."
    )


def _check_space(archive: Path, into: Path) -> None:
    """As much as the members say; of a compressed tar only that it is no smaller extracted."""
    needed = archive.stat().st_size
    if archive.name.endswith(".zip") and zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            needed = sum(member.file_size for member in opened.infolist())
    need_space(into, needed, f"what {archive} holds")


def _merge(unpacked: Path, into: Path) -> None:
    """Move every file to its place; one that is there is replaced."""
    for folder, folders, files in os.walk(unpacked):
        target = into / Path(folder).relative_to(unpacked)
        for name in folders:
            (target / name).mkdir(exist_ok=True)
        for name in files:
            os.replace(Path(folder, name), target / name)


def _print(archive: Path) -> str:
    """What tells this archive from another of its name."""
    found = archive.stat()
    return json.dumps({"bytes": found.st_size, "modified": found.st_mtime_ns})


def _read(mark: Path) -> str | None:
    return mark.read_text() if mark.is_file() else None
