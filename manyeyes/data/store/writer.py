"""Writing a store: a listing in, a whole folder out, whatever happens in between."""

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyeyes.core.population import Ints
from manyeyes.data.decode import UnreadableImage
from manyeyes.data.manifest import Files, Manifest
from manyeyes.data.store import examples
from manyeyes.data.store.builder import IMAGES, VERSION, StoreBuilder, crc32
from manyeyes.data.store.chunks import CHUNK, Job, chunks, read
from manyeyes.data.store.examples import OWN, Arranged, arrange
from manyeyes.io.files import acquire_lock, atomic_write, sync_folder, write_text

JPEG_SHARE = 0.2  # of the raw bytes, as measured on photographs of 256 x 256


@dataclass(frozen=True)
class Summary:
    """What was prepared."""

    path: Path
    users: int
    examples: int
    images: int
    unreadable_images: int  # examples whose image cannot be read
    problems: dict[str, int]  # how many of each kind; prepare.log names them
    bytes: int


def write(
    listing: Manifest,
    out: Path,
    size: int | None,
    *,
    encoding: str = "raw",
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Prepare a store, its images `size` pixels a side (None: as they are, all alike); go on where it was stopped.

    `progress` is told how many images of how many are done. Several processes are started where there is enough to do.
    """
    _check(listing, size, encoding, processes)
    out = Path(os.path.realpath(out))  # a link stays one: the store is made where it leads
    if os.path.ismount(out):
        raise ValueError(f"{out} is where a disk is mounted, and a store is renamed into place: give a folder in it")
    folder = out.with_name(f".{out.name}.preparing")
    folder.mkdir(parents=True, exist_ok=True)
    with acquire_lock(out, folder / ".lock"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            shutil.rmtree(folder)
            what = "already holds a store" if (out / "meta.json").exists() else "already holds something else"
            raise ValueError(f"{out} {what}: delete it, or choose another folder")
        arranged = arrange(listing)
        height, width = (size, size) if size else _first_shape(arranged)
        about = {
            "version": VERSION,
            "dataset": listing.dataset,
            "shape": [height, width],
            "images": len(arranged.images),
            "raw": os.path.realpath(listing.source.root) if isinstance(listing.source, Files) else "",
            "fingerprint": arranged.fingerprint(),
            "encoding": encoding,
            "chunk": CHUNK,
        }
        preparing = StoreBuilder(folder, encoding, about)
        preparing.resume()
        _check_space(out, about, preparing.end)
        job = Job(listing.source, arranged.images, size, (height, width), encoding)
        _convert(preparing, job, out, processes or _processes(job.count), progress)
        meta = _finish(preparing, arranged)
        preparing.store.replace(out)
        sync_folder(out.parent)
        shutil.rmtree(folder)
    found = {name: meta[name] for name in ("users", "examples", "images", "unreadable_images", "problems")}
    return Summary(out, **found, bytes=sum(meta["bytes"].values()))


def _check(listing: Manifest, size: int | None, encoding: str, processes: int | None) -> None:
    if not len(listing):
        raise ValueError(f"{listing.dataset} lists no examples: is the raw folder the right one?")
    if size is not None and not 1 <= size <= 4096:
        raise ValueError(f"size is {size}: give a number of pixels from 1 to 4096")
    if encoding not in IMAGES:
        raise ValueError(f"encoding is {encoding!r}: choose {' or '.join(IMAGES)}")
    if processes is not None and processes < 1:
        raise ValueError(f"processes is {processes}: give at least 1, or None for one a core")
    assert listing.labels and not {*OWN} & {*listing.labels, *listing.columns}


def _first_shape(arranged: Arranged) -> tuple[int, int]:
    """Height and width of the first image that can be read."""
    source = arranged.listing.source
    for index in arranged.images.tolist():
        try:
            height, width = read(source, index, None)[1].pixels_HWC.shape[:2]
        except UnreadableImage:
            continue
        return height, width
    raise ValueError(f"none of the {len(arranged.images)} images of {arranged.listing.dataset} can be read")


def _check_space(out: Path, about: dict[str, Any], have: int) -> None:
    height, width = about["shape"]
    share = JPEG_SHARE if about["encoding"] == "jpeg" else 1
    need = int(about["images"] * height * width * 3 * share) - have
    free = shutil.disk_usage(out.parent).free
    if need > free:
        less = "a smaller size" if share < 1 else "a smaller size or encoding jpeg"
        raise ValueError(
            f"{out} needs {need / 1e9:.1f} GB and its disk has {free / 1e9:.1f} GB free: make room, or choose {less}"
        )


def _processes(chunks: int) -> int:
    """One for a job that is done before others would have started."""
    return max(1, min(os.cpu_count() or 1, chunks // 8))


def _convert(
    preparing: StoreBuilder, job: Job, out: Path, processes: int, progress: Callable[[int, int], None] | None
) -> None:
    """Make the chunks that are not there yet; whatever stops it, those that are stay."""
    total = len(job.images)

    def done() -> int:
        return min(len(preparing.done) * CHUNK, total)

    if progress is not None:
        progress(done(), total)
    try:
        with closing(chunks(job, len(preparing.done), min(processes, job.count))) as made:
            for chunk in made:
                preparing.add(chunk)
                if progress is not None:
                    progress(done(), total)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        kept = f"{done()} of {total} images are done and kept: make room and give the same command again"
        raise OSError(error.errno, f"the disk is full; {kept}", str(out)) from error
    except KeyboardInterrupt:
        kept = f"{done()} of {total} images are done and kept: give the same command again to go on"
        raise KeyboardInterrupt(f"stopped; {kept}") from None


def _finish(preparing: StoreBuilder, arranged: Arranged) -> dict[str, Any]:
    """Write everything but the images."""
    listing, store = arranged.listing, preparing.store
    left_out = [(row, kind) for chunk in preparing.done for row, kind in chunk["left_out"]]
    notes = [(row, kind) for chunk in preparing.done for row, kind in chunk["notes"]]
    shown = arranged.where(~np.isin(arranged.rows, [row for row, _ in left_out]))
    if not len(shown.listing):
        row, kind = left_out[0]
        name = listing.source.name(int(arranged.images[row]))
        shutil.rmtree(preparing.folder)  # nothing in it is worth going on with
        raise ValueError(f"none of the {len(arranged.images)} images can be read; the first, {name}, is {kind}")
    problems = [
        *((kind, listing.source.name(int(arranged.images[row]))) for row, kind in sorted(left_out + notes)),
        *(("duplicate id", name) for name in _duplicates(arranged)),
        *(("user in two splits", name) for name in _in_two_splits(listing)),
    ]
    if preparing.encoding == "jpeg":
        lengths = [length for chunk in preparing.done for length in chunk["lengths"]]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("<i8")
        atomic_write(store / "offsets.npy", lambda beside: _save(beside, offsets))
    atomic_write(store / "examples.parquet", lambda beside: examples.write(shown, beside))
    write_text(store / "prepare.log", "".join(f"{kind}\t{_printable(name)}\n" for kind, name in problems))
    others = [name for name in ("offsets.npy", "examples.parquet") if (store / name).exists()]
    meta = {
        "version": VERSION,
        "dataset": listing.dataset,
        "encoding": preparing.encoding,
        "shape": preparing.metadata["shape"],
        "users": len(np.unique(shown.listing.users)),
        "examples": len(shown.listing),
        "images": len(arranged.images) - len(left_out),
        "unreadable_images": len(listing) - len(shown.listing),
        "problems": dict(sorted(Counter(kind for kind, _ in problems).items())),
        "bytes": {name: (store / name).stat().st_size for name in (preparing.images.name, *others)},
        "crc32": {preparing.images.name: preparing.crc, **{name: crc32(store / name) for name in others}},
        "notes": dict(listing.notes),
        "tasks": {name: list(labels.classes) for name, labels in listing.labels.items()},
    }
    write_text(store / "meta.json", json.dumps(meta, indent=1, default=_plain) + "\n")
    return meta


def _duplicates(arranged: Arranged) -> list[str]:
    """Ids of two different images, or twice with one user."""
    if "image_id" not in arranged.listing.columns:
        return []
    names, ids, counts = np.unique(arranged.listing.columns["image_id"], return_inverse=True, return_counts=True)
    users = np.unique(arranged.listing.users, return_inverse=True)[1]
    holders = np.bincount(_pairs(ids, users), minlength=len(names))
    images = np.bincount(_pairs(ids, arranged.rows), minlength=len(names))
    return [str(name) for name in names[(counts > holders) | (images > 1)]]


def _in_two_splits(listing: Manifest) -> list[str]:
    """Users in several splits, where that is not the rule: in a split within users, at least half of them are."""
    names, users = np.unique(listing.users, return_inverse=True)
    several = np.bincount(_pairs(users, np.unique(listing.split, return_inverse=True)[1])) > 1
    return [] if several.mean() >= 0.5 else names[several].tolist()


def _pairs(first: Ints, second: Ints) -> Ints:
    """The first of each pair of numbers, every different pair once."""
    return np.unique(np.stack([first, second]), axis=1)[0]


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array)


def _printable(name: str) -> str:
    """One line of text, whatever a file is called."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def _plain(value: Any) -> Any:
    """NumPy's numbers, paths and the like in JSON."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
