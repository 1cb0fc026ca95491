"""The numbers of a run as columns, and downsampled curves of them."""

from array import array
from bisect import bisect_left
from functools import lru_cache
from math import nan
from threading import Lock

import numpy as np

from manyeyes.io.tail import TailReader
from manyeyes.report.downsample import downsample_minmax
from manyeyes.training.event_columns import CUMULATIVE, MIN_LINES, EventBlock, Floats, parse_block
from manyeyes.training.run_files import finite_numbers, parse_event

MAX_POINTS = 500  # of a curve
MAX_COLUMNS = 200  # more than any run has
MAX_CACHED_RUNS = 128
AXES = ("round", *CUMULATIVE, "epsilon")  # that a curve may be drawn over

Curve = tuple[Floats, Floats]  # x and y


class Columns:
    """The numbers of one run: for each name, the values of its rows until the last known one; NaN where it is unknown."""

    def __init__(self, path: str) -> None:
        self.lock = Lock()
        self._reader = TailReader(path)
        self._clear()

    def refresh(self) -> None:
        """Read the lines that were added; a round that is repeated after a resume replaces the earlier one."""
        while True:
            is_reset, lines = self._reader.read()
            if is_reset:
                self._clear()
            block = parse_block(b"\n".join([*lines, b""])) if len(lines) >= MIN_LINES else None
            if block is not None and (not self._rounds or block.rounds[0] > self._rounds[-1]):
                self._extend(block)
                continue
            for line in lines:
                self._add(line)
            if not lines:
                return

    @property
    def names(self) -> list[str]:
        return [name for name in self._columns if not np.isnan(self._column(name)).all()]

    def curve(self, x: str, y: str, max_points: int = MAX_POINTS) -> Curve | None:
        """Return one column over another, downsampled; None if the run does not have both."""
        if y not in self._columns or x not in ("round", *self._columns):
            return None
        positions = np.array(self._rounds, np.float64) if x == "round" else self._column(x)
        positions, values = np.nancumsum(positions) if x in CUMULATIVE else positions, self._column(y)
        if np.isnan(values).all():
            return None
        is_known = ~np.isnan(positions + values)
        positions, values = positions[is_known], values[is_known]
        indices = downsample_minmax(positions, values, max_points)
        return positions[indices], values[indices]

    def _clear(self) -> None:
        self._rounds: array[int] = array("q")
        self._columns: dict[str, array[float]] = {}

    def _add(self, line: bytes) -> None:
        event = parse_event(line)
        if event is None:
            return
        row = bisect_left(self._rounds, event["round"])
        del self._rounds[row:]
        for column in self._columns.values():
            del column[row:]
        self._rounds.append(event["round"])
        for name, value in finite_numbers(event):
            if name in self._columns or len(self._columns) < MAX_COLUMNS:
                column = self._columns.setdefault(name, array("d"))
                column.extend([nan] * (row - len(column)))
                column.append(value)

    def _extend(self, block: EventBlock) -> None:
        row = len(self._rounds)
        self._rounds.frombytes(block.rounds.tobytes())
        for name, values in block.columns.items():
            if name in self._columns or len(self._columns) < MAX_COLUMNS:
                column = self._columns.setdefault(name, array("d"))
                column.extend([nan] * (row - len(column)))
                column.frombytes(values.tobytes())

    def _column(self, name: str) -> Floats:
        values = np.array(self._columns[name])
        return np.pad(values, (0, len(self._rounds) - len(values)), constant_values=nan)


class CurveCache:
    """The columns of the runs that were requested last, updated at each request."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.columns = lru_cache(MAX_CACHED_RUNS)(Columns)

    def curves(self, path: str, x: str, names: list[str]) -> tuple[list[str], dict[str, Curve]] | None:
        """Return the names of all columns of a metrics file, and the requested curves; None if it cannot be read."""
        with self._lock:
            columns = self.columns(path)
        with columns.lock:  # of this run alone: a long file does not delay the curves of other runs
            try:
                columns.refresh()
            except OSError:
                return None
            curves = {name: columns.curve(x, name) for name in names}
            return columns.names, {name: curve for name, curve in curves.items() if curve is not None}
