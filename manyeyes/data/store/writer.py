"""The writer of a store: from a manifest to a complete folder, resumable after any interruption."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.filesize import decimal as format_bytes

from manyeyes.core.population import Ints
from manyeyes.core.registry import Bounds, check_value
from manyeyes.data.decode import UnreadableImage
from manyeyes.data.download.fetch import check_space
from manyeyes.data.manifest import Files, Manifest
from manyeyes.data.store.builder import IMAGE_FILES, VERSION, StoreBuilder, crc32
from manyeyes.data.store.checksums import CHECKSUMS_FILE, to_npy
from manyeyes.data.store.chunks import CHUNK_SIZE, ConversionJob, convert, read_shape
from manyeyes.data.store.examples import RESERVED_COLUMNS, SortedExamples, sort_examples
from manyeyes.data.store.meta import meta_text
from manyeyes.io.files import DISK_FULL, acquire_lock, atomic_write, make_folder, sync_folder, write_bytes, write_text

JPEG_FRACTION = 0.2  # of the raw bytes, measured on photographs of 256 x 256
NUM_COMPARED_SIZES = 1000  # images that are looked at where not all have one size
MAX_KEPT_SIDE, DEFAULT_SIZE = 1024, 224  # pixels; larger images are photos, which a model needs smaller
MIN_CHUNKS_PER_PROCESS = 8  # fewer are converted before another process would have started

Progress = Callable[[int, int], None]  # called with the finished and the total number of images


@dataclass(frozen=True)
class Summary:
    """What a store contains."""

    path: Path
    users: int
    examples: int
    images: int
    unreadable_images: int  # examples whose image cannot be read
    problems: dict[str, int]  # the number of each kind; prepare.log names them
    bytes: int
    caveats: tuple[str, ...] = ()  # caveats of the dataset


def write_store(
    manifest: Manifest,
    out: Path,
    size: int | None,
    *,
    encoding: str = "raw",
    processes: int | None = None,
    progress: Progress | None = None,
    announce: Callable[[str], None] | None = None,
) -> Summary:
    """Write a store, or continue one that was interrupted.

    Images get `size` pixels per side; with None they keep their size, which must be the same for all. By default there
    is one process per core if there are enough images. `progress` gets the finished and the total number of images, and
    `announce`, before the first of them, a line with their size and the space that they take.
    """
    _check_options(manifest, size, encoding, processes)
    out = Path(os.path.realpath(out))  # a link stays one: the store is at its target
    if os.path.ismount(out):
        raise ValueError(f"{out} is a mount point, and a store is renamed into place: give a folder in it")
    sorted_examples = sort_examples(manifest)
    shape = (size, size) if size else _common_shape(sorted_examples)
    folder = out.with_name(f".{out.name}.preparing")
    make_folder(folder)
    with acquire_lock(out, folder / ".lock"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            shutil.rmtree(folder, ignore_errors=True)
            content = "a prepared dataset" if (out / "meta.json").exists() else "something else"
            raise ValueError(f"{out} already contains {content}: delete it, or choose another folder with --out")
        metadata = {
            "version": VERSION,
            "dataset": manifest.dataset,
            "shape": list(shape),
            "images": len(sorted_examples.images),
            "raw": os.path.realpath(manifest.source.root) if isinstance(manifest.source, Files) else "",
            "fingerprint": sorted_examples.fingerprint(),
            "encoding": encoding,
            "chunk": CHUNK_SIZE,
        }
        builder = StoreBuilder(folder, metadata)
        builder.resume()
        _check_space(out, builder)
        if announce:
            announce(_announcement(out, builder))
        job = ConversionJob(manifest.source, sorted_examples.images, size, shape, encoding)
        with _advice(builder):
            _convert_images(builder, job, processes, progress)
            meta = _write_other_files(builder, sorted_examples)
            builder.store.replace(out)
            sync_folder(out.parent)
        shutil.rmtree(folder, ignore_errors=True)
    counts = {name: meta[name] for name in ("users", "examples", "images", "unreadable_images", "problems")}
    return Summary(out, **counts, bytes=sum(meta["bytes"].values()), caveats=tuple(meta["caveats"]))


def _check_options(manifest: Manifest, size: int | None, encoding: str, processes: int | None) -> None:
    if not len(manifest):
        raise ValueError(f"{manifest.dataset} has no examples: check that the raw folder is the right one")
    check_value("size", size, int | None, Bounds(minimum=1, maximum=4096))
    check_value("encoding", encoding, str, Bounds(choices=tuple(IMAGE_FILES)))
    check_value("processes", processes, int | None, Bounds(minimum=1))
    reserved = {*RESERVED_COLUMNS} & {*manifest.labels, *manifest.columns}
    assert manifest.labels and not reserved, f"{manifest.dataset} needs labels, and no column named {reserved}"


def _common_shape(sorted_examples: SortedExamples) -> tuple[int, int]:
    """Return the height and width that all images have; without one, raise ValueError with those that were found."""
    source, shapes, first_problem = sorted_examples.manifest.source, Counter[tuple[int, int]](), None
    for row, index in enumerate(sorted_examples.images.tolist()):
        try:
            shapes[read_shape(source, index)] += 1
        except UnreadableImage as problem:
            first_problem = first_problem or (row, str(problem))
        if len(shapes) > 1 and row >= NUM_COMPARED_SIZES:
            break
    if first_problem and not shapes:
        raise _nothing_readable(sorted_examples, *first_problem)
    (most_frequent, count), *others = shapes.most_common()
    fix = f"choose the pixels per side with size, such as --size {DEFAULT_SIZE}"
    if others:
        low, high = ("{} x {}".format(*bound(shapes, key=lambda shape: shape[0] * shape[1])) for bound in (min, max))
        common = "{} x {}".format(*most_frequent)
        num_read = f"{shapes.total():,} that were read"
        sizes = f"{len(shapes)} sizes from {low} to {high} pixels; {count:,} of the {num_read} have {common}"
        raise ValueError(f"The images of {sorted_examples.manifest.dataset} have {sizes}: {fix}")
    if max(most_frequent) > MAX_KEPT_SIDE:
        size = "{} x {}".format(*most_frequent)
        raise ValueError(f"The images of {sorted_examples.manifest.dataset} have {size} pixels: {fix}")
    return most_frequent


def _announcement(out: Path, builder: StoreBuilder) -> str:
    height, width = builder.metadata["shape"]
    done = f", {builder.num_images:,} of them already written" if builder.num_images else ""
    images = f"{builder.metadata['images']:,} images of {height} x {width} pixels{done}"
    return f"{out}: {images}, about {format_bytes(max(_remaining_bytes(builder), 0))} to write"


def _check_space(out: Path, builder: StoreBuilder) -> None:
    is_jpeg = builder.metadata["encoding"] == "jpeg"
    fix = "choose a smaller size" if is_jpeg else "choose a smaller size or encoding=jpeg"
    check_space(out.parent, _remaining_bytes(builder), str(out), fix)


def _remaining_bytes(builder: StoreBuilder) -> int:
    """Return about how many bytes of images are still to be written."""
    height, width = builder.metadata["shape"]
    fraction = JPEG_FRACTION if builder.metadata["encoding"] == "jpeg" else 1
    written = int(builder.state["end"]) if builder.num_images else 0  # else it is the end of the header
    return int(builder.metadata["images"] * height * width * 3 * fraction) - written


@contextmanager
def _advice(builder: StoreBuilder) -> Iterator[None]:
    """Say in the error of a file, or after Ctrl-C, what is done and how to go on."""
    total = builder.metadata["images"]
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        reason, space = error.strerror, ""
        if error.errno in DISK_FULL:
            reason, space = "the disk is full", f"free about {max(_remaining_bytes(builder) / 1e6, 1):,.0f} MB and "
        done = f"{builder.num_images} of {total} images are done"
        raise OSError(
            error.errno, f"{reason}; {done}: {space}run the same command again", error.filename or str(builder.folder)
        ) from error
    except KeyboardInterrupt:
        done = f"{builder.num_images} of {total} images are done"
        raise KeyboardInterrupt(f"stopped; {done}: run the same command again to continue") from None


def _convert_images(
    builder: StoreBuilder, job: ConversionJob, processes: int | None, progress: Progress | None
) -> None:
    """Convert the chunks that are missing; an interruption loses none of the others."""
    report = progress or (lambda done, total: None)
    total = len(job.images)
    processes = processes or max(1, min(os.cpu_count() or 1, job.num_chunks // MIN_CHUNKS_PER_PROCESS))
    report(builder.num_images, total)
    with closing(convert(job, len(builder.chunks), min(processes, job.num_chunks))) as chunks:
        for chunk in chunks:
            builder.add(chunk)
            report(builder.num_images, total)


def _write_other_files(builder: StoreBuilder, sorted_examples: SortedExamples) -> dict[str, Any]:
    """Write everything except the images; return the content of meta.json."""
    manifest, store = sorted_examples.manifest, builder.store
    unreadable = [(row, reason) for chunk in builder.chunks for row, reason in chunk["unreadable"]]
    kept = np.flatnonzero(~np.isin(sorted_examples.rows, [row for row, _ in unreadable]))
    readable = replace(sorted_examples, manifest=manifest.take(kept), rows=sorted_examples.rows[kept])
    if not len(readable.manifest):
        shutil.rmtree(builder.folder)  # it contains nothing to continue with
        raise _nothing_readable(sorted_examples, *unreadable[0])
    images, files = builder.images.name, ["examples.parquet", CHECKSUMS_FILE]
    if builder.metadata["encoding"] == "jpeg":
        sizes = [size for chunk in builder.chunks for size in chunk["sizes"]]
        write_bytes(store / "offsets.npy", to_npy(np.cumsum([0, *sizes]).astype("<i8")))
        files.insert(0, "offsets.npy")
    checksums = [checksum for chunk in builder.chunks for checksum in chunk["checksums"]]
    write_bytes(store / CHECKSUMS_FILE, to_npy(np.array(checksums, "<u4")))
    atomic_write(store / "examples.parquet", readable.write)
    problems = _problems(builder, sorted_examples, unreadable)
    write_text(store / "prepare.log", "".join(f"{kind}\t{_printable(name)}\n" for kind, name in problems))
    meta = {
        **{key: builder.metadata[key] for key in ("version", "dataset", "encoding", "shape")},
        "users": len(np.unique(readable.manifest.users)),
        "examples": len(readable.manifest),
        "images": len(sorted_examples.images) - len(unreadable),
        "unreadable_images": len(manifest) - len(readable.manifest),
        "caveats": _caveats(manifest, len(readable.manifest)),
        "problems": dict(sorted(Counter(kind for kind, _ in problems).items())),
        "bytes": {name: (store / name).stat().st_size for name in (images, *files)},
        "crc32": {images: builder.state["crc"], **{name: crc32(store / name) for name in files}},
        "notes": dict(manifest.notes),
        "tasks": {name: list(labels.classes) for name, labels in manifest.labels.items()},
    }
    write_text(store / "meta.json", meta_text(meta))
    return meta


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def _nothing_readable(sorted_examples: SortedExamples, row: int, reason: str) -> ValueError:
    name = sorted_examples.manifest.source.name(int(sorted_examples.images[row]))
    count = len(sorted_examples.images)
    return ValueError(f"None of the {count} images can be read; the first, {name}, is {reason}: check them")


def _caveats(manifest: Manifest, num_examples: int) -> list[str]:
    """Return the caveats of the dataset: those of its manifest, and whether examples are missing."""
    num_listed = len(manifest) + manifest.num_missing
    partial = [f"{num_examples:,} of {num_listed:,} examples"] if num_examples < num_listed else []
    return [*manifest.caveats, *partial]


def _problems(
    builder: StoreBuilder, sorted_examples: SortedExamples, unreadable: list[tuple[int, str]]
) -> list[tuple[str, str]]:
    """Return the kind of each problem, and the image, id or user that has it."""
    manifest = sorted_examples.manifest
    notes = [(row, note) for chunk in builder.chunks for row, note in chunk["notes"]]
    return [
        *manifest.skipped,
        *((kind, manifest.source.name(int(sorted_examples.images[row]))) for row, kind in sorted(unreadable + notes)),
        *(("duplicate id", name) for name in _duplicate_ids(sorted_examples)),
        *(("user in two splits", name) for name in _users_in_two_splits(manifest)),
    ]


def _duplicate_ids(sorted_examples: SortedExamples) -> list[str]:
    """Return the ids of two different images, or twice with one user."""
    manifest = sorted_examples.manifest
    if "image_id" not in manifest.columns:
        return []
    names, ids, counts = np.unique(manifest.columns["image_id"], return_inverse=True, return_counts=True)
    num_users = _count_distinct(ids, np.unique(manifest.users, return_inverse=True)[1])
    num_images = _count_distinct(ids, sorted_examples.rows)
    return [str(name) for name in names[(counts > num_users) | (num_images > 1)]]


def _users_in_two_splits(manifest: Manifest) -> list[str]:
    """Return the users in several splits; none where at least half of them are, as in a split within users."""
    names, users = np.unique(manifest.users, return_inverse=True)
    in_several = _count_distinct(users, np.unique(manifest.split, return_inverse=True)[1]) > 1
    return [] if in_several.mean() >= 0.5 else names[in_several].tolist()


def _count_distinct(groups: Ints, values: Ints) -> Ints:
    """Return how many different values each group has; groups are numbered from 0 without gaps."""
    return np.bincount(np.unique(np.stack([groups, values]), axis=1)[0])
