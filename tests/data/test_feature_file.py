"""Features on disk are computed once, whatever interrupts that, and again where they are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from manyeyes.core.population import Floats, Ints
from manyeyes.data.feature_file import CHUNK_ROWS, FeatureFile

NUM_ROWS = 3 * CHUNK_ROWS - 10
ALL_ROWS = np.arange(NUM_ROWS)


def features_of(rows: Ints) -> Floats:
    return np.stack([rows, 2 * rows], 1).astype(np.float32)


def read(file: FeatureFile) -> Floats:
    values: Floats = np.array(file.open()).reshape(file.num_rows, -1).view(np.float32)
    return values


def compute(file: FeatureFile, rows: Ints, fails_at: int = -1) -> list[int]:
    """Compute the features of rows, and return the first row of each chunk that was computed."""
    computed: list[int] = []

    def recorded(rows: Ints) -> Floats:
        if len(computed) == fails_at:
            raise KeyboardInterrupt
        computed.append(int(rows[0]))
        return features_of(rows)

    try:
        file.compute(rows, recorded, {"model": "a test"}, lambda done, total: None)
    except KeyboardInterrupt:
        assert fails_at >= 0
    return computed


@pytest.fixture
def file(tmp_path: Path) -> FeatureFile:
    return FeatureFile(tmp_path / "new" / "key", NUM_ROWS, 2)


def test_features_are_those_of_each_row(file: FeatureFile) -> None:
    compute(file, ALL_ROWS)
    np.testing.assert_array_equal(read(file), features_of(ALL_ROWS))


def test_only_chunks_with_the_rows_are_computed(file: FeatureFile) -> None:
    assert compute(file, np.array([0, CHUNK_ROWS - 1, 2 * CHUNK_ROWS])) == [0, 2 * CHUNK_ROWS]
    assert compute(file, ALL_ROWS) == [CHUNK_ROWS]
    assert compute(file, ALL_ROWS) == []


def test_an_interrupted_computation_continues_where_it_was(file: FeatureFile) -> None:
    assert compute(file, ALL_ROWS, fails_at=2) == [0, CHUNK_ROWS]
    assert compute(file, ALL_ROWS) == [2 * CHUNK_ROWS]
    np.testing.assert_array_equal(read(file), features_of(ALL_ROWS))


def test_a_record_that_was_cut_off_counts_as_none(file: FeatureFile) -> None:
    compute(file, ALL_ROWS)
    records = file.folder / "chunks.bin"
    records.write_bytes(records.read_bytes()[:-5])
    assert compute(file, ALL_ROWS) == [2 * CHUNK_ROWS]
    assert file.incomplete_chunks(ALL_ROWS) == []


def test_a_damaged_chunk_is_computed_again(file: FeatureFile) -> None:
    compute(file, ALL_ROWS)
    data = bytearray(file.rows_path.read_bytes())
    data[CHUNK_ROWS * 8 + 3] ^= 1
    file.rows_path.write_bytes(data)
    assert compute(file, ALL_ROWS) == [CHUNK_ROWS]
    np.testing.assert_array_equal(read(file), features_of(ALL_ROWS))


def test_only_the_owner_can_read_features(file: FeatureFile) -> None:
    compute(file, ALL_ROWS)
    modes = {path.name: path.stat().st_mode & 0o077 for path in [file.folder, *file.folder.iterdir()]}
    assert not any(modes.values()), modes
