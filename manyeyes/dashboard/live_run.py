"""A run as the dashboard shows it, updated from what is added to its folder."""

import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from manyeyes.dashboard.settings import Settings, read_settings, safe_text
from manyeyes.io.tail import TailReader, read_small_file
from manyeyes.training import run_files
from manyeyes.training.headline import HEADLINE_METRICS, shared_metric, shared_model_name
from manyeyes.training.run_files import Event, Status

NUM_RECENT_EVENTS = 20  # that the speed is measured over
NUM_OBSERVATIONS = 60  # of when the run was at which round
MIN_OBSERVED_ROUNDS, MIN_OBSERVED_SECONDS = 3, 5  # before they replace the seconds that the run recorded
GROWING_SECONDS = 10.0  # since the last line, in which a run without a lock is taken for one of another machine
OVER_SECONDS = 60.0  # without a change, after which a run that has ended is not looked at again


class RecentEvents:
    """The last events and the last scores of a metrics file, which is read from its end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.events: deque[Event] = deque(maxlen=NUM_RECENT_EVENTS)
        self.scores: dict[str, float] = {}  # the most important first
        self._reader: TailReader | None = None

    @property
    def round(self) -> int:
        return int(self.events[-1]["round"]) if self.events else 0

    def refresh(self) -> bool:
        """Read the lines that were added; return whether reading started over."""
        is_reset, lines = self._reader.read() if self._reader else (True, [])
        if not is_reset:
            self._add(lines)
            return False
        self.scores = {}
        for window in run_files.TAIL_BYTES:  # as much of the end of the file as it takes to find a score
            self.events.clear()
            self._reader = TailReader(self.path, window)
            while lines := self._reader.read()[1]:
                self._add(lines)
            if self.scores or self._reader.is_complete:
                break
        return True

    def _add(self, lines: list[bytes]) -> None:
        for event in filter(None, map(run_files.parse_event, lines)):
            self.events.append(event)
            values = dict(run_files.finite_numbers(event))
            scores = {name: values[name] for name in HEADLINE_METRICS if name in values}
            self.scores = scores or self.scores


class LiveRun:
    """A run folder, and what was read of it so far."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.metrics_path = os.path.join(path, run_files.METRICS_FILE)
        self.id = blake2b(os.fsencode(path), digest_size=8).hexdigest()
        self.name = safe_text(os.fsencode(name).decode(errors="replace"))
        self.settings: Settings = {}
        self.row: dict[str, Any] = {}
        self.version = 0  # of the index, when the row last changed
        self._recent = RecentEvents(self.metrics_path)
        self._metrics_stamp = self._config_stamp = (0, 0)
        self._model_time = 0
        self._failure: tuple[Status, str] | None = None
        self._observations: deque[tuple[float, int]] = deque(maxlen=NUM_OBSERVATIONS)  # times and rounds
        self._is_locked = self._is_growing = self._is_over = False

    def refresh(self, has_changed_files: bool, locked_inodes: Callable[[], frozenset[int] | None]) -> bool:
        """Update the row; return whether a setting has changed. `has_changed_files`: since the last time."""
        has_changed_settings = has_changed_files and self._read_files()
        has_grown = self._read_metrics()
        if self._is_over and not has_grown and not has_changed_files:
            return has_changed_settings
        was_locked, lock_path = self._is_locked, os.path.join(self.path, run_files.LOCK_FILE)
        self._is_locked = run_files.is_locked(lock_path, locked_inodes())
        if has_grown and self.row:
            self._is_growing = not self._is_locked and not was_locked
        self.row = self._make_row()
        return has_changed_settings

    def _read_files(self) -> bool:
        """Read everything but the metrics; return whether a setting has changed."""
        self._model_time = _stamp(os.path.join(self.path, run_files.MODEL_FILE))[1]
        self._failure = run_files.read_failure(self.path)
        config_path = os.path.join(self.path, run_files.CONFIG_FILE)
        stamp = _stamp(config_path)
        if stamp == self._config_stamp:
            return False
        self._config_stamp, self.settings = stamp, read_settings(config_path)
        return True

    def _read_metrics(self) -> bool:
        """Read the lines that were added, and return whether there are any."""
        stamp = _stamp(self.metrics_path)
        if stamp == self._metrics_stamp:
            return False
        self._metrics_stamp = stamp
        try:
            if self._recent.refresh():
                self._observations.clear()
        except OSError:  # the file was removed; the folder will follow
            self._recent = RecentEvents(self.metrics_path)
        if self._recent.events:
            self._observations.append((stamp[1] / run_files.NANOSECONDS, self._recent.round))
        return True

    def _make_row(self) -> dict[str, Any]:
        """Return what the list of runs shows of this one; numbers of clients and speeds are those of recent rounds."""
        recent = [dict(run_files.finite_numbers(event)) for event in self._recent.events]
        last = recent[-1] if recent else {}
        num_images, seconds = (sum(event.get(name, 0) for event in recent) for name in ("num_images", "seconds"))
        seconds_per_round = self._seconds_per_round(seconds / max(1, sum("seconds" in event for event in recent)))
        round, text = self._recent.round, self.settings.get("rounds", "")
        rounds = int(text) if text.isdecimal() and len(text) < 16 else None
        updated = self._metrics_stamp[1] or self._config_stamp[1]
        status, note = self._status(updated, rounds, seconds_per_round)
        metric, score = next(iter(self._recent.scores.items()), (None, None))
        model = shared_model_name(has_personal_layers="personal_layers.name" in self.settings)
        shared_score = self._recent.scores.get(shared_metric(metric) or "")  # only next to a personalized one
        return {
            "id": self.id,
            "name": self.name,
            "status": status,
            "note": safe_text(note),
            "caveats": self.settings.get(run_files.CAVEATS_KEY, ""),  # of the data
            "round": round,
            "rounds": rounds,
            "metric": metric,  # that the score is of
            "score": score,
            "shared": None if shared_score is None else {"model": model, "score": shared_score},
            "loss": last.get("train_loss"),
            "images_per_second": num_images / seconds if seconds else None,
            "seconds_left": (status == "running" and seconds_per_round * ((rounds or round) - round)) or None,
            "epsilon": last.get("epsilon"),
            "epsilon_budget": _number(self.settings.get("privacy.epsilon")),
            "num_rejected": sum(map(_num_rejected, self._recent.events)),
            "pid": self._pid(),  # of the process that trains it
            "updated": int(updated / run_files.NANOSECONDS),
        }

    def _pid(self) -> int | None:
        """Return the process of this machine that has the run; None if there is none."""
        if not self._is_locked:
            return None
        with suppress(OSError, ValueError):
            return int(read_small_file(os.path.join(self.path, run_files.LOCK_FILE)))
        return None

    def _status(self, updated: int, rounds: int | None, seconds_per_round: float) -> tuple[Status, str]:
        events, silent_seconds = self._recent.events, time.time() - updated / run_files.NANOSECONDS
        is_final = run_files.is_final_model(self._model_time, updated, self._recent.round, rounds)
        is_stopped_early = bool(self._model_time and events and events[-1].get("stop_reason") is not None)
        status, note = run_files.run_status(
            has_events=bool(events),
            is_complete=is_final or is_stopped_early,
            failure=self._failure,
            is_locked=self._is_locked,
            is_growing=self._is_growing or silent_seconds < GROWING_SECONDS,
            silent_seconds=silent_seconds,
            seconds_per_round=seconds_per_round,
        )
        self._is_over = status not in ("running", "stale") and silent_seconds > OVER_SECONDS
        return status, note

    def _seconds_per_round(self, recorded: float) -> float:
        """Return the observed time per round, which includes evaluations; until there is enough of it, the recorded."""
        if not self._observations:
            return recorded
        (first_time, first_round), (last_time, last_round) = self._observations[0], self._observations[-1]
        rounds, seconds = last_round - first_round, last_time - first_time
        is_enough = rounds >= MIN_OBSERVED_ROUNDS and seconds >= MIN_OBSERVED_SECONDS
        return seconds / rounds if is_enough else recorded


def _num_rejected(event: run_files.Event) -> int:
    clients = event.get("rejected_clients")
    return len(clients) if isinstance(clients, list) else 0


def _stamp(path: str) -> tuple[int, int]:
    """Return the size and the time of a file; zeros if it does not exist."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if number and math.isfinite(number) else None
