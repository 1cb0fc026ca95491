"""The index: every run below a folder, in memory; looking again costs what has changed since."""

import os
import secrets
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from manyeyes.dashboard.live_run import CONFIG, FIELDS, METRICS, LiveRun
from manyeyes.dashboard.settings import differing
from manyeyes.dashboard.status import locked

UNSURE = 2 * 10**9  # ns after a change in which another may have left the same time
REFRESH_SECONDS = 0.4  # seconds between two looks, however many pages ask


@dataclass(frozen=True)
class Folder:
    """What a folder held when it was last looked into; links are not looked at."""

    time: int
    files: frozenset[str]
    folders: tuple[str, ...]


class RunIndex:
    """Runs by their ids; a version counts the changes, so that a page asks only for what it has not seen."""

    def __init__(self, root: Path) -> None:
        self.root = str(root.resolve())
        self.runs: dict[str, LiveRun] = {}
        self.version = 0
        self._epoch = secrets.token_hex(4)  # versions of another process mean nothing to this one
        self._folders: dict[str, Folder] = {}
        self._paths: dict[str, LiveRun] = {}
        self._gone: dict[str, int] = {}
        self._settings = 0  # the version in which a setting last changed
        self._looked = 0.0
        self._lock = Lock()

    def changes(self, since: str = "") -> dict[str, Any]:
        """What has changed since a version, or everything."""
        with self._lock:
            if time.monotonic() - self._looked > REFRESH_SECONDS:
                self.refresh()
                self._looked = time.monotonic()
            epoch, _, number = since.partition(".")
            known = int(number) if epoch == self._epoch and number.isdecimal() and len(number) < 16 else -1
            found: dict[str, Any] = {
                "version": f"{self._epoch}.{self.version}",
                "now": time.time(),
                "fields": FIELDS,
                "whole": known < 0,
                "runs": [run.facts for run in self.runs.values() if run.version > known],
                "gone": [run for run, version in self._gone.items() if version > known >= 0],
            }
            if self._settings > known:
                found["settings"] = differing({run.id: run.settings for run in self.runs.values()})
            return found

    def refresh(self) -> None:
        """Walk over the folders; only those that have changed are looked into, and only new lines are read."""
        locks = cache(locked)  # asked for once, if at all
        there, changed, number = set(), False, self.version + 1
        for path, names in self._walk():
            files = self._folders[path].files
            if METRICS not in files and not {CONFIG, "environment.json"} <= files:
                continue
            run = self._paths.get(path) or self._add(path)
            there.add(path)
            before = run.facts
            if run.refresh(names if before else files, locks):
                self._settings, changed = number, True
            if run.facts != before:
                run.version, changed = number, True
        for path in self._paths.keys() - there:
            run = self._paths.pop(path)
            del self.runs[run.id]
            self._gone[run.id] = self._settings = number
            changed = True
        self.version += changed

    def _add(self, path: str) -> LiveRun:
        name = os.path.relpath(path, self.root) if path != self.root else os.path.basename(path)
        run = self._paths[path] = LiveRun(path, name)
        self.runs[run.id] = run
        self._gone.pop(run.id, None)
        return run

    def _walk(self) -> list[tuple[str, frozenset[str] | None]]:
        """All folders, each with its files if they may be others than last time."""
        found, left, known = [], [self.root], self._folders
        self._folders = {}
        while left:
            path = left.pop()
            try:
                now = os.stat(path, follow_symlinks=False).st_mtime_ns
                folder = known.get(path)
                changed = folder is None or folder.time != now
                if folder is None or changed:
                    folder = _look(path, now)
            except OSError:  # it has gone, or is not ours to read
                continue
            self._folders[path] = folder
            found.append((path, folder.files if changed else None))
            left += reversed(folder.folders)
        return found


def _look(path: str, now: int) -> Folder:
    files, folders = set(), []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink():
                continue
            if not entry.is_dir():
                files.add(entry.name)
            elif not entry.name.startswith("."):
                folders.append(entry.path)
    sure = time.time_ns() - now > UNSURE
    return Folder(now if sure else -1, frozenset(files), tuple(sorted(folders)))
