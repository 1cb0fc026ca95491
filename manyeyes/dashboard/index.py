"""The index of the runs below a folder; a refresh reads only what has changed."""

import os
import secrets
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from manyeyes.dashboard.live_run import LiveRun
from manyeyes.dashboard.settings import compact_settings
from manyeyes.training.run_files import locked_inodes
from manyeyes.training.run_names import RUN_FILES

TIME_RESOLUTION_NS = 2 * 10**9  # after a change, in which another one may leave the same time
REFRESH_SECONDS = 0.4  # at least, between two refreshes, however many pages ask


@dataclass(frozen=True)
class Folder:
    """The content of a folder when it was last read, without links."""

    time: int
    files: frozenset[str]
    folders: tuple[str, ...]


class RunIndex:
    """Runs by their ids, with a version that counts changes: a page asks only for what it does not have."""

    def __init__(self, root: Path, refresh_seconds: float = REFRESH_SECONDS) -> None:
        self.root = str(root.resolve())
        self.runs: dict[str, LiveRun] = {}
        self.version = 0
        self._epoch = secrets.token_hex(4)  # tells versions of this process from those of an earlier one
        self._folders: dict[str, Folder] = {}
        self._runs_by_path: dict[str, LiveRun] = {}
        self._removed: dict[str, int] = {}  # ids, and the versions of their removal
        self._settings_version = 0  # in which a setting last changed
        self._refresh_seconds, self._refreshed = refresh_seconds, float("-inf")
        self._lock = Lock()

    def changes(self, since: str = "") -> dict[str, Any]:
        """Return what has changed since a version, or everything."""
        with self._lock:
            if time.monotonic() - self._refreshed > self._refresh_seconds:
                self.refresh()
                self._refreshed = time.monotonic()
            epoch, _, number = since.partition(".")
            is_known = epoch == self._epoch and number.isdecimal() and len(number) < 16
            known = int(number) if is_known else -1
            changes: dict[str, Any] = {
                "version": f"{self._epoch}.{self.version}",
                "now": time.time(),
                "is_full": not is_known,
                "runs": [run.row for run in self.runs.values() if run.version > known],
                "removed": [run_id for run_id, version in self._removed.items() if is_known and version > known],
            }
            if self._settings_version > known:
                changes["settings"] = compact_settings({run.id: run.settings for run in self.runs.values()})
            return changes

    def refresh(self) -> None:
        """Read folders that have changed, and lines that were added."""
        inodes = cache(locked_inodes)  # read once, if at all
        next_version, is_changed, paths = self.version + 1, False, set()
        for path, has_changed_files in self._walk():
            if self._folders[path].files.isdisjoint(RUN_FILES):
                continue
            paths.add(path)
            run = self._runs_by_path.get(path) or self._add(path)
            old_row = run.row
            if run.refresh(has_changed_files or not old_row, inodes):
                self._settings_version, is_changed = next_version, True
            if run.row != old_row:
                run.version, is_changed = next_version, True
        for path in self._runs_by_path.keys() - paths:
            run = self._runs_by_path.pop(path)
            del self.runs[run.id]
            self._removed[run.id] = self._settings_version = next_version
            is_changed = True
        self.version += is_changed

    def _add(self, path: str) -> LiveRun:
        name = os.path.relpath(path, self.root) if path != self.root else os.path.basename(path)
        run = self._runs_by_path[path] = LiveRun(path, name)
        self.runs[run.id] = run
        self._removed.pop(run.id, None)
        return run

    def _walk(self) -> list[tuple[str, bool]]:
        """Return all folders, and whether their files may have changed since the last time."""
        folders, stack, known = [], [self.root], self._folders
        self._folders = {}
        while stack:
            path = stack.pop()
            try:
                modified = os.stat(path, follow_symlinks=False).st_mtime_ns
                folder = known.get(path)
                has_changed = folder is None or folder.time != modified
                if folder is None or has_changed:
                    folder = _read_folder(path, modified)
            except OSError:  # it was removed, or may not be read
                continue
            self._folders[path] = folder
            folders.append((path, has_changed))
            stack += reversed(folder.folders)
        return folders


def _read_folder(path: str, modified: int) -> Folder:
    with os.scandir(path) as entries:
        content = [entry for entry in entries if not entry.is_symlink()]
    files = frozenset(entry.name for entry in content if not entry.is_dir())
    folders = sorted(entry.path for entry in content if entry.is_dir() and not entry.name.startswith("."))
    is_certain = time.time_ns() - modified > TIME_RESOLUTION_NS
    return Folder(modified if is_certain else -1, files, tuple(folders))
