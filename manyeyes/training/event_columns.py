"""The numbers of many events as columns: a million lines of a metrics file in a few seconds."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from manyeyes.training.run_files import MAX_ROUND, Event, parse_event

MIN_LINES = 1000  # of a block, below which lines are parsed one by one
BLOCK_BYTES = 2**24
CUMULATIVE = ("max_client_batches", "num_images", "seconds")  # event values that are also summed over rounds

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class EventBlock:
    """Consecutive events: their rounds, which ascend, and their finite numbers by name; NaN where there is none."""

    rounds: Ints
    columns: dict[str, Floats]


def parse_block(data: bytes) -> EventBlock | None:
    """Return the events of complete lines; None where one is damaged or out of order, and lines have to be looked at."""
    import pyarrow as pa  # which takes a while to import
    import pyarrow.json as pj

    try:
        table = pj.read_json(pa.BufferReader(data), pj.ReadOptions(block_size=2**22))
    except pa.ArrowException:
        return None
    named = {field.name: table.column(field.name) for field in table.schema}
    if "round" not in named or len(named) < table.num_columns or data.count(b"\n") != table.num_rows:
        return None
    rounds = named.pop("round")
    if not pa.types.is_int64(rounds.type) or rounds.null_count:
        return None
    rounds_E = rounds.to_numpy()
    is_ascending = (
        len(rounds_E) and rounds_E[0] >= 0 and rounds_E[-1] < MAX_ROUND and bool((np.diff(rounds_E) > 0).all())
    )
    numbers = {name: _finite(values, pa) for name, values in named.items() if _is_number(values.type, pa)}
    if not is_ascending or any(name in named and name not in numbers for name in CUMULATIVE):
        return None
    return EventBlock(rounds_E, numbers)


def _is_number(kind: Any, pa: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _finite(values: Any, pa: Any) -> Floats:
    array = values.cast(pa.int8() if pa.types.is_boolean(values.type) else values.type).cast(pa.float64(), safe=False)
    floats: Floats = np.array(array.to_numpy(), np.float64)
    floats[~np.isfinite(floats)] = math.nan
    return floats


class LongEvents(Sequence[Event]):
    """The events of a long run, as an undamaged metrics file has them: parsed when they are asked for, numbers at once."""

    def __init__(self, data: bytes, blocks: Sequence[EventBlock]) -> None:
        self._data = data  # complete lines
        self.rounds = np.concatenate([block.rounds for block in blocks])
        self._blocks = blocks

    @staticmethod
    def parse(data: bytes) -> "LongEvents | None":
        """Return the events of a metrics file, if it is long and all of its lines are undamaged and in order."""
        blocks: list[EventBlock] = []
        start = 0
        while start < len(data):
            end = data.rfind(b"\n", start, start + BLOCK_BYTES) + 1
            block = parse_block(data[start:end]) if end else None
            if block is None or (blocks and block.rounds[0] <= blocks[-1].rounds[-1]):
                return None
            blocks.append(block)
            start = end
        return LongEvents(data, blocks)

    @cached_property
    def numbers(self) -> dict[str, Floats]:
        """The numbers of all events by name; NaN where an event has none."""
        names = dict.fromkeys(name for block in self._blocks for name in block.columns)
        missing = [np.full(len(block.rounds), math.nan) for block in self._blocks]
        return {
            name: np.concatenate([b.columns.get(name, none) for b, none in zip(self._blocks, missing, strict=True)])
            for name in names
        }

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[Event]:
        return (json.loads(line) for line in self._data.splitlines())

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if index == -1:
            last = parse_event(self._data[self._data.rfind(b"\n", 0, -1) + 1 :])
            assert last is not None, "the last line was parsed before"
            return last
        return list(self)[index]
