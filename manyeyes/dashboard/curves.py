"""The numbers of a run as columns, and downsampled curves of them."""

from array import array
from bisect import bisect_left
from collections import OrderedDict
from threading import Lock

import numpy as np

from manyeyes.io.tail import TailReader
from manyeyes.report.downsample import downsample_minmax
from manyeyes.training.run_files import finite_numbers, parse_event
from manyeyes.training.run_record import CUMULATIVE, Floats

MAX_POINTS = 500  # of a curve
MAX_COLUMNS = 200  # more than any run has
MAX_CACHED_RUNS = 128
AXES = ("round", *CUMULATIVE, "epsilon")  # that a curve may be drawn over

Curve = tuple[Floats, Floats]  # x and y


class Columns:
    """The numbers of one run: for each name, the rows that have it and its values."""

    def __init__(self, path: str) -> None:
        self._reader = TailReader(path)
        self._clear()

    def refresh(self) -> None:
        """Read the lines that were added; a round that is repeated after a resume replaces the earlier one."""
        while True:
            is_reset, lines = self._reader.read()
            if is_reset:
                self._clear()
            for line in lines:
                self._add(line)
            if not lines:
                return

    @property
    def names(self) -> list[str]:
        return [name for name, (rows, _) in self._columns.items() if len(rows)]

    def curve(self, x: str, y: str, max_points: int = MAX_POINTS) -> Curve | None:
        """Return one column over another, downsampled; None if the run does not have both."""
        axis = self._axis(x)
        if axis is None or y not in self.names:
            return None
        rows, values = map(np.array, self._columns[y])
        has_x = ~np.isnan(axis[rows])
        positions, values = axis[rows][has_x], values[has_x]
        indices = downsample_minmax(positions, values, max_points)
        return positions[indices], values[indices]

    def _clear(self) -> None:
        self._rounds: array[int] = array("q")
        self._columns: dict[str, tuple[array[int], array[float]]] = {}

    def _add(self, line: bytes) -> None:
        event = parse_event(line)
        if event is None:
            return
        if self._rounds and event["round"] <= self._rounds[-1]:
            self._truncate(bisect_left(self._rounds, event["round"]))
        row = len(self._rounds)
        self._rounds.append(event["round"])
        for name, value in finite_numbers(event):
            if name in self._columns or len(self._columns) < MAX_COLUMNS:
                rows, values = self._columns.setdefault(name, (array("q"), array("d")))
                rows.append(row)
                values.append(value)

    def _truncate(self, num_rows: int) -> None:
        del self._rounds[num_rows:]
        for rows, values in self._columns.values():
            start = bisect_left(rows, num_rows)
            del rows[start:], values[start:]

    def _axis(self, name: str) -> Floats | None:
        """Return the position of each row on an axis; NaN where it has none."""
        if name == "round":
            return np.array(self._rounds, np.float64)
        if name not in self._columns:
            return None
        rows, values = map(np.array, self._columns[name])
        positions = np.full(len(self._rounds), 0.0 if name in CUMULATIVE else np.nan)
        positions[rows] = values
        return np.cumsum(positions) if name in CUMULATIVE else positions


class CurveCache:
    """The columns of the runs that were requested last, updated at each request."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._columns: OrderedDict[str, Columns] = OrderedDict()

    def curves(self, path: str, x: str, names: list[str]) -> tuple[list[str], dict[str, Curve]] | None:
        """Return the names of all columns of a metrics file, and the requested curves; None if it cannot be read."""
        with self._lock:
            columns = self._columns.pop(path, None) or Columns(path)
            try:
                columns.refresh()
            except OSError:
                return None
            self._columns[path] = columns
            while len(self._columns) > MAX_CACHED_RUNS:
                self._columns.popitem(last=False)
            curves = {name: columns.curve(x, name) for name in names}
            return columns.names, {name: curve for name, curve in curves.items() if curve is not None}
