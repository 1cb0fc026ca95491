"""Curves: all numbers of a run as columns, and as many points of one as a screen can show."""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from manyeyes.io.tail import TailReader
from manyeyes.training.run_files import finite_numbers, parse_event

POINTS = 500  # of a curve on the page
COLUMNS = 200  # more than any run has
MAX_CACHED_RUNS = 128  # runs whose columns stay in memory
AXES = ("round", "seconds", "images", "batches", "epsilon")  # what a curve may be drawn over
SUMMED = ("seconds", "images", "batches")

Floats = NDArray[np.float64]


class Columns:
    """The numbers of one run: for each name the lines that have it, and its values."""

    def __init__(self, path: str) -> None:
        self._file = TailReader(path)
        self._clear()

    def _clear(self) -> None:
        self._rounds: array[int] = array("q")
        self._columns: dict[str, tuple[array[int], array[float]]] = {}

    def refresh(self) -> None:
        """Read what was appended; a round that comes again, after a resume, takes the place of the first."""
        while True:
            anew, lines = self._file.read()
            if anew:
                self._clear()
            for line in lines:
                self._add(line)
            if not lines:
                return

    def _add(self, line: bytes) -> None:
        found = parse_event(line)
        if found is None:
            return
        if self._rounds and found["round"] <= self._rounds[-1]:
            self._cut(bisect_left(self._rounds, found["round"]))
        row = len(self._rounds)
        self._rounds.append(found["round"])
        for name, value in finite_numbers(found):
            if name in self._columns or len(self._columns) < COLUMNS:
                rows, values = self._columns.setdefault(name, (array("q"), array("d")))
                rows.append(row)
                values.append(value)

    def _cut(self, row: int) -> None:
        del self._rounds[row:]
        for rows, values in self._columns.values():
            keep = bisect_left(rows, row)
            del rows[keep:], values[keep:]

    @property
    def names(self) -> list[str]:
        return [name for name, (rows, _) in self._columns.items() if len(rows)]

    def curve(self, x: str, y: str, points: int = POINTS) -> tuple[Floats, Floats] | None:
        """One column over another, thinned out; None where the run does not have both."""
        if y not in self._columns or not len(self._columns[y][0]):
            return None
        rows, values = (np.array(part) for part in self._columns[y])
        axis = self._axis(x)
        if axis is None:
            return None
        at = axis[rows]
        there = ~np.isnan(at)
        return downsample_minmax(at[there], values[there], points)

    def _axis(self, name: str) -> Floats | None:
        """For each line its place on the x axis, where it has one."""
        if name == "round":
            return np.array(self._rounds, np.float64)
        if name not in self._columns:
            return None
        rows, values = (np.array(part) for part in self._columns[name])
        whole = np.full(len(self._rounds), 0.0 if name in SUMMED else np.nan)
        whole[rows] = values
        return np.cumsum(whole) if name in SUMMED else whole


def downsample_minmax(x: Floats, y: Floats, points: int = POINTS) -> tuple[Floats, Floats]:
    """The lowest and the highest point of each of `points` / 2 stretches, and both ends: no peak is lost."""
    if len(y) <= points:
        return x, y
    stretches = points // 2
    length = -(-len(y) // stretches)
    stretches = -(-len(y) // length)
    padded = np.pad(y, (0, stretches * length - len(y)), mode="edge").reshape(stretches, length)
    first = np.arange(stretches) * length
    chosen = np.concatenate([first + padded.argmin(1), first + padded.argmax(1), [0, len(y) - 1]])
    chosen = np.unique(np.minimum(chosen, len(y) - 1))
    return x[chosen], y[chosen]


class CurveCache:
    """The columns of the runs that somebody looked at last, kept up to date as they are asked for."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[str, Columns] = OrderedDict()

    def curves(self, path: str, x: str, names: list[str]) -> tuple[list[str], dict[str, tuple[Floats, Floats]]] | None:
        """What there is to draw of a run as it is now, and the curves asked for; None where it cannot be read."""
        with self._lock:
            columns = self._kept.pop(path, None) or Columns(path)
            try:
                columns.refresh()
            except OSError:
                return None
            self._kept[path] = columns
            while len(self._kept) > MAX_CACHED_RUNS:
                self._kept.popitem(last=False)
            found = {name: columns.curve(x, name) for name in names}
            return columns.names, {name: curve for name, curve in found.items() if curve is not None}
