"""One run as the board sees it: a row of facts, kept up to date with what its folder gets."""

import os
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from manyeyes.dashboard.settings import Settings, read_settings, shown
from manyeyes.dashboard.status import RunSignals, end_reason, held, run_status
from manyeyes.io.tail import TailReader
from manyeyes.training.run_files import finite_numbers, parse_event

METRICS, CONFIG, MODEL, LOCK = "metrics.jsonl", "config.yaml", "model.safetensors", ".lock"
HEADLINES = ("macro_ap", "accuracy")  # the score of a run, whichever it has
WINDOWS = (2**14, 2**17, 2**20, None)  # how far back from its end a file is searched for a score
RECENT = 20  # rounds that speed is taken over
FIELDS = (
    *("id", "name", "state", "note", "round", "rounds", "metric", "value", "loss"),
    *("speed", "left", "epsilon", "budget", "left_out", "changed"),
)
Stamp = tuple[int, int]  # size and time of a file


@dataclass
class LiveRun:
    """A run's folder, what was read of it, and what it comes to."""

    path: str
    name: str
    settings: Settings = field(default_factory=dict)
    facts: tuple[Any, ...] = ()  # as in FIELDS
    version: int = 0  # of the index, when the facts last changed
    _over: bool = False
    _file: TailReader | None = None
    _metrics: Stamp = (0, 0)
    _config: Stamp = (0, 0)
    _model: int = 0
    _ended: tuple[str, str] | None = None
    _recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))
    _scored: dict[str, float] = field(default_factory=dict)
    _seen: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=60))  # when it was at which round
    _held: bool = False
    _elsewhere: bool = False

    def __post_init__(self) -> None:
        self.id = blake2b(os.fsencode(self.path), digest_size=8).hexdigest()
        self.name = shown(os.fsencode(self.name).decode(errors="replace"))

    @property
    def metrics(self) -> str:
        return os.path.join(self.path, METRICS)

    def refresh(self, names: frozenset[str] | None, locks: Callable[[], frozenset[int] | None]) -> bool:
        """Look again, and at all files where `names` says that the folder has changed; is a setting another now?"""
        other = names is not None and self._look(names)
        grown = self._read()
        if self._over and not grown and names is None:
            return other
        before, self._held = self._held, held(os.path.join(self.path, LOCK), locks())
        if grown and self.facts:
            self._elsewhere = not self._held and not before
        self.facts = self._facts()
        return other

    def _look(self, names: frozenset[str]) -> bool:
        self._model = _stamp(os.path.join(self.path, MODEL))[1] if MODEL in names else 0
        self._ended = end_reason(self.path, names)
        config = os.path.join(self.path, CONFIG)
        stamp = _stamp(config)
        if stamp == self._config:
            return False
        self._config, self.settings = stamp, read_settings(config)
        return True

    def _read(self) -> bool:
        """Take in the lines that were appended, if any were."""
        stamp = _stamp(self.metrics)
        if stamp == self._metrics:
            return False
        self._metrics = stamp
        try:
            anew, lines = self._file.read() if self._file else (True, [])
            if anew:
                self._begin()
            else:
                self._take(lines)
        except OSError:  # it has gone, and the folder will follow
            self._file = None
        if self._recent:
            self._seen.append((stamp[1] / 1e9, self._recent[-1]["round"]))
        return True

    def _begin(self) -> None:
        """Read from the end, as far back as there is a score."""
        self._scored = {}
        self._seen.clear()
        for window in WINDOWS:
            self._recent.clear()
            self._file = TailReader(self.metrics, window)
            lines = self._file.read()[1]
            while window is None and (more := self._file.read()[1]):
                lines += more
            self._take(lines)
            if self._scored or self._file.is_complete:
                return

    def _take(self, lines: list[bytes]) -> None:
        """The last rounds of these lines, and the last score."""
        last: list[dict[str, Any]] = []
        scored: dict[str, float] = {}
        for line in reversed(lines):
            found = parse_event(line) if len(last) < RECENT or not scored else None
            if found is None:
                continue
            if len(last) < RECENT:
                last.append(found)
            scored = scored or {name: value for name, value in finite_numbers(found) if name in HEADLINES}
        self._recent.extend(reversed(last))
        self._scored = scored or self._scored

    def _facts(self) -> tuple[Any, ...]:
        recent = [dict(finite_numbers(each)) for each in self._recent]
        last = recent[-1] if recent else {}
        round = self._recent[-1]["round"] if self._recent else 0
        rounds = self._rounds()
        images, seconds = (sum(each.get(name, 0) for each in recent) for name in ("images", "seconds"))
        pace = self._pace(seconds / max(1, sum("seconds" in each for each in recent)))
        stamp = self._metrics[1] or self._config[1]
        whole = bool(self._model) and (self._model >= stamp or (rounds is not None and round >= rounds))
        signs = RunSignals(self._held, self._elsewhere, time.time() - stamp / 1e9, pace, whole, self._ended)
        kind, note = run_status(signs)
        self._over = kind not in ("running", "stale") and signs.quiet > 60
        metric = next((name for name in HEADLINES if name in self._scored), None)
        private = self.settings.get("privacy.name", "none") != "none"
        return (
            *(self.id, self.name, kind, note, round, rounds, metric, self._scored.get(metric or "")),
            last.get("train_loss"),
            images / seconds if seconds else None,
            pace * (rounds - round) if kind == "running" and rounds is not None and pace else None,
            last.get("epsilon"),
            _number(self.settings.get("privacy.epsilon")) if private else None,
            sum(len(e["left_out"]) for e in self._recent if isinstance(e.get("left_out"), list)),
            stamp // 10**9,
        )

    def _rounds(self) -> int | None:
        """How many it shall have; a run that was begun in Python tells it within a longer text."""
        told = self.settings.get("rounds", "")
        within = re.search(r"\brounds=(\d{1,15})\b", self.settings.get("settings", ""))
        return int(told) if re.fullmatch(r"\d{1,15}", told) else int(within[1]) if within else None

    def _pace(self, measured: float) -> float:
        """Seconds a round by the clock, evaluations included, once it was watched for a while; else as it measured."""
        (first, began), (last, round) = (self._seen[0], self._seen[-1]) if self._seen else ((0.0, 0), (0.0, 0))
        return (last - first) / (round - began) if round - began >= 3 and last - first >= 5 else measured


def _stamp(path: str) -> Stamp:
    """Size and time of a file; zeros where there is none."""
    try:
        about = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return about.st_size, about.st_mtime_ns


def _number(text: str | None) -> float | None:
    try:
        return float(text or "") or None
    except ValueError:
        return None
