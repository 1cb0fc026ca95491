"""A layer between a program and the files of one folder, which records every operation and can let one of them fail.

Python's pure implementation of `open` sends every read and write through the functions of `os`, which the layer
replaces. Rust and C++ code that writes files (safetensors, Arrow) is replaced by the same operations in Python.
"""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]
import builtins
import errno
import io
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import safetensors
import safetensors.torch

from manyeyes.io import tensors
from tests.faults.power_loss import Disk, Event, Node, apply

OPENS = ("open", "open for writing", "create")
CHANGES = ("open for writing", "create", "write", "truncate", "rename", "mkdir", "unlink", "rmdir")


@dataclass(frozen=True)
class FaultKind:
    """What goes wrong: an error number for some operations, once or from then on; 0 writes only a half."""

    error: int
    operations: tuple[str, ...]
    is_lasting: bool = False


ALL = (*CHANGES, "open", "sync", "mmap")
GROWS = ("create", "write", "sync", "rename", "mkdir", "mmap")
FAULTS = {
    "disk full from here on": FaultKind(errno.ENOSPC, GROWS, is_lasting=True),
    "disk full once": FaultKind(errno.ENOSPC, GROWS),
    "I/O error once": FaultKind(errno.EIO, ALL),
    "I/O errors from here on": FaultKind(errno.EIO, ALL, is_lasting=True),
    "short write": FaultKind(0, ("write",)),
    "read-only from here on": FaultKind(errno.EROFS, CHANGES, is_lasting=True),
}


@dataclass(frozen=True)
class Fault:
    kind: FaultKind
    number: int  # of the first operation that fails


class FileLayer:
    """Records the operations on the files below `root`, and fails those that `fault` says."""

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        self.root, self._fault = os.path.realpath(root), fault
        self.operations: list[tuple[str, str]] = []  # kind and path
        self.events: list[Event] = []
        self.tree = read_tree(self.root)  # the files now
        self.disk = Disk(self.tree)  # the files at the start, whose events are added later
        self._handles: dict[int, Node] = {}
        self._paths: dict[int, str] = {}
        self._lock = threading.RLock()

    def fails(self, kind: str, path: str) -> bool:
        """Count an operation, and return whether it fails."""
        with self._lock:
            number = len(self.operations)
            self.operations.append((kind, os.path.relpath(path, self.root)))
        fault = self._fault
        if fault is None or kind not in fault.kind.operations:
            return False
        return number >= fault.number if fault.kind.is_lasting else number == fault.number

    def check(self, kind: str, path: str) -> None:
        """Count an operation, and raise the error with which it fails."""
        if self.fails(kind, path):
            raise self.error(kind, path)

    def error(self, kind: str, path: str) -> OSError:
        assert self._fault is not None, "an operation fails without a fault"
        number = self._fault.kind.error
        if kind == "mmap":
            number = errno.ENOMEM
        names_file = kind not in ("write", "sync", "mmap") and not (kind == "truncate" and path in self._paths.values())
        return OSError(number, os.strerror(number), path) if names_file else OSError(number, os.strerror(number))

    def path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the full path of a file of the folder; None for another file."""
        if isinstance(path, int):
            return self._paths.get(path)
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        path = os.fsdecode(path)
        if dir_fd is not None:
            if dir_fd not in self._paths:
                return None
            path = os.path.join(self._paths[dir_fd], path)
        path = os.path.abspath(path)
        return path if path == self.root or path.startswith(self.root + os.sep) else None

    def entry(self, path: str) -> tuple[Node, str]:
        """Return the folder and the name of a path."""
        folder, name = os.path.split(path)
        return self.find(folder), name

    def find(self, path: str) -> Node:
        node = self.tree
        for name in os.path.relpath(path, self.root).split(os.sep):
            if name != ".":
                assert node.entries is not None, f"{path} is below a file"
                node = node.entries[name]
        return node

    def record(self, event: Event) -> None:
        with self._lock:
            apply(event)
            self.events.append(event)


def read_tree(root: str) -> Node:
    """Return the files of a folder."""
    folder = Node({})
    assert folder.entries is not None, "a folder has entries"
    for item in os.scandir(root):
        is_folder = item.is_dir(follow_symlinks=False)
        folder.entries[item.name] = (
            read_tree(item.path) if is_folder else Node(None, bytearray(Path(item).read_bytes()))
        )
    return folder


def write_tree(node: Node, path: Path) -> None:
    """Write the files of a tree below a folder, which exists."""
    for name, child in (node.entries or {}).items():
        if child.entries is None:
            (path / name).write_bytes(child.content)
        else:
            (path / name).mkdir()
            write_tree(child, path / name)


@contextmanager
def file_layer(root: Path, fault: Fault | None = None) -> Iterator[FileLayer]:
    """Install a layer for the files of a folder."""
    layer = FileLayer(root, fault)
    with pytest.MonkeyPatch.context() as patch:
        for name, make in PATCHED.items():
            patch.setattr(os, name, make(layer, getattr(os, name)))
        patch.setattr(os, "remove", os.unlink)
        patch.setattr(os, "rename", os.replace)
        real_open = builtins.open

        def open_file(file: Any, *args: Any, **options: Any) -> Any:
            is_ours = layer.path(file) is not None
            return _pyio.open(file, *args, **options) if is_ours else real_open(file, *args, **options)

        patch.setattr(builtins, "open", open_file)
        patch.setattr(io, "open", open_file)
        patch.setattr(mmap, "mmap", _mmap(layer))
        patch.setattr(safetensors.torch, "serialize_file", _serialize_file)
        patch.setattr(tensors, "safe_open", _reader(layer, safetensors.safe_open))
        patch.setattr(pyarrow.parquet, "write_table", _write_table)
        patch.setattr(pyarrow.parquet, "read_table", _reader(layer, pyarrow.parquet.read_table))
        yield layer


def _open(layer: FileLayer, real: Any) -> Callable[..., int]:
    def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = layer.path(path, dir_fd)
        if name is None:
            return int(real(path, flags, mode, dir_fd=dir_fd))
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(name)
        layer.check("create" if is_new else "open for writing" if flags & (os.O_WRONLY | os.O_RDWR) else "open", name)
        handle = int(real(path, flags, mode, dir_fd=dir_fd))
        if is_new:
            layer.record(Event("link", Node(), entry=layer.entry(name)))
        node = layer.find(name)
        if flags & os.O_TRUNC and node.content:
            layer.record(Event("truncate", node))
        layer._handles[handle], layer._paths[handle] = node, name
        return handle

    return open_file


def _close(layer: FileLayer, real: Any) -> Callable[..., None]:
    def close(handle: int) -> None:
        layer._handles.pop(handle, None)
        layer._paths.pop(handle, None)
        real(handle)

    return close


def _write(layer: FileLayer, real: Any) -> Callable[..., int]:
    def write_bytes(handle: int, data: Any, *offset: int) -> int:
        """Replace os.write and os.pwrite."""
        if handle not in layer._handles:
            return int(real(handle, data, *offset))
        view, error = bytes(data), None
        if layer.fails("write", layer._paths[handle]):
            error = layer.error("write", layer._paths[handle])
            view = view[: len(view) // 2] if error.errno in (0, errno.ENOSPC) else view[:0]
            if error.errno == 0 and not view:  # of one byte there is no half
                view, error = bytes(data), None
        count = int(real(handle, view, *offset)) if view else 0
        if count:
            start = offset[0] if offset else os.lseek(handle, 0, os.SEEK_CUR) - count
            layer.record(Event("write", layer._handles[handle], view[:count], start))
        if error is not None and error.errno:
            raise error
        return count

    return write_bytes


def _truncate(layer: FileLayer, real: Any) -> Callable[..., None]:
    def truncate(path: Any, size: int) -> None:
        name = layer.path(path)
        if name is not None:
            layer.check("truncate", name)
        real(path, size)
        if name is not None:
            layer.record(Event("truncate", layer.find(name), offset=size))

    return truncate


def _sync(layer: FileLayer, real: Any) -> Callable[..., None]:
    def sync(handle: int) -> None:
        """Replace os.fsync and os.fdatasync; the disk of the tests need not be waited for."""
        if handle not in layer._handles:
            real(handle)
            return
        layer.check("sync", layer._paths[handle])
        layer.record(Event("sync", layer._handles[handle]))

    return sync


def _sync_all(layer: FileLayer, real: Any) -> Callable[..., None]:
    def sync() -> None:
        layer.operations.append(("sync", "."))  # it reports no errors
        layer.record(Event("sync", None))

    return sync


def _replace(layer: FileLayer, real: Any) -> Callable[..., None]:
    def replace(source: Any, target: Any, **options: Any) -> None:
        old, new = layer.path(source), layer.path(target)
        if old is None or new is None:
            real(source, target, **options)
            return
        layer.check("rename", old)
        real(source, target, **options)
        layer.record(Event("rename", layer.find(old), entry=layer.entry(new), source=layer.entry(old)))

    return replace


def _mkdir(layer: FileLayer, real: Any) -> Callable[..., None]:
    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        name = layer.path(path, dir_fd)
        if name is not None and not os.path.lexists(name):
            layer.check("mkdir", name)
        real(path, mode, dir_fd=dir_fd)
        if name is not None:
            layer.record(Event("link", Node({}), entry=layer.entry(name)))

    return mkdir


def _remove(kind: str) -> Callable[[FileLayer, Any], Callable[..., None]]:
    def make(layer: FileLayer, real: Any) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            name = layer.path(path, dir_fd)
            if name is not None and os.path.lexists(name):
                layer.check(kind, name)
            real(path, dir_fd=dir_fd)
            if name is not None:
                layer.record(Event("unlink", None, entry=layer.entry(name)))

        return remove

    return make


PATCHED: dict[str, Callable[[FileLayer, Any], Callable[..., Any]]] = {
    "open": _open,
    "close": _close,
    "write": _write,
    "pwrite": _write,
    "truncate": _truncate,
    "ftruncate": _truncate,
    "fsync": _sync,
    "fdatasync": _sync,
    "sync": _sync_all,
    "replace": _replace,
    "mkdir": _mkdir,
    "unlink": _remove("unlink"),
    "rmdir": _remove("rmdir"),
}


def _mmap(layer: FileLayer) -> type[mmap.mmap]:
    class Mapping(mmap.mmap):
        def __new__(cls, fileno: int, *args: Any, **options: Any) -> Mapping:
            layer.check("mmap", layer._paths.get(fileno, layer.root))
            return super().__new__(cls, fileno, *args, **options)

    return Mapping


def _serialize_file(tensors: Any, path: Any, metadata: Any = None) -> None:
    """Write as safetensors 0.8 does: to a temporary file, which is renamed."""
    path = Path(path)
    temp_path = path.with_name(".tmpAbCdEf")
    try:
        try:
            with open(temp_path, "wb") as file:
                file.write(safetensors.serialize(tensors, metadata))
        except OSError:
            temp_path.unlink()  # as Rust's `tempfile` does
            raise
        os.replace(temp_path, path)
    except OSError as error:
        text = f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
        raise safetensors.SafetensorError(text) from None


def _reader(layer: FileLayer, real: Any) -> Callable[..., Any]:
    """Count that a reader in Rust or C++ opens and maps a file."""

    def read(path: Any, *args: Any, **options: Any) -> Any:
        name = layer.path(path)
        if name is not None and os.path.exists(name):
            layer.check("open", name)
            layer.check("mmap", name)
        return real(path, *args, **options)

    return read


def _write_table(table: Any, where: Any, **options: Any) -> None:
    """Write as Arrow does, whose errors name no file."""
    buffer = io.BytesIO()
    with pyarrow.parquet.ParquetWriter(
        buffer, table.schema, compression=options.pop("compression", "snappy")
    ) as writer:
        writer.write_table(table, **options)
    if isinstance(where, io.IOBase):
        where.write(buffer.getvalue())
        return
    try:
        with open(where, "wb") as file:
            file.write(buffer.getvalue())
    except OSError as error:
        text = f"Error writing bytes to file. Detail: [errno {error.errno}] {error.strerror}"
        raise OSError(error.errno, text) from None
