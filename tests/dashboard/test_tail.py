"""Files that grow, are cut and are replaced while they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from manyeyes.dashboard.tail import TailReader, event, numbers


def test_only_new_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    file = TailReader(str(path))
    assert file.read() == (True, [b"one", b"two"])
    assert file.read() == (False, [])
    with path.open("ab") as more:
        more.write(b"three\n")
    assert file.read() == (False, [b"three"])


def test_a_line_that_is_half_written_waits_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"round": 1}\n{"rou')
    file = TailReader(str(path))
    assert file.read() == (True, [b'{"round": 1}'])
    with path.open("ab") as more:
        more.write(b'nd": 2}\n')
    assert file.read() == (False, [b'{"round": 2}'])


@pytest.mark.parametrize("now", [b"one\n", b"one\nTWO\n", b"one\nTWO\nthree\nfour\n"])
def test_a_file_that_was_cut_and_has_grown_again_is_read_anew(tmp_path: Path, now: bytes) -> None:
    """As a resume does: the lines after the checkpoint go, and others come, be they as long."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    file = TailReader(str(path))
    file.read()
    path.write_bytes(now)
    assert file.read() == (True, now.split(b"\n")[:-1])


def test_a_file_in_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    path, other = tmp_path / "lines", tmp_path / "other"
    path.write_bytes(b"one\n")
    file = TailReader(str(path))
    file.read()
    other.write_bytes(b"one\ntwo\n")
    other.replace(path)
    assert file.read() == (True, [b"one", b"two"])


def test_a_window_begins_with_its_first_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%05d\n" % n for n in range(100)))
    file = TailReader(str(path), window=20)  # three lines of six bytes, and the end of another
    assert file.read() == (True, [b"00097", b"00098", b"00099"])
    assert not file.whole


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret\n")
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("link", "symbolic"), ("folder", "no plain file"), ("pipe", "no plain file")):
        with pytest.raises(OSError, match=why):
            TailReader(str(tmp_path / name)).read()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[1]",
        b'{"loss": 1}',
        b'{"round": "1"}',
        b'{"round": true}',
        b'{"round": -1}',
        b'{"round": 1',
        b"[" * 99_999,
        b"\xff",
    ],
)
def test_what_is_no_event_is_none(line: bytes) -> None:
    assert event(line) is None


def test_the_numbers_of_an_event_are_finite() -> None:
    line = b'{"round": 3, "loss": 0.5, "a": NaN, "b": Infinity, "c": 1' + b"0" * 400 + b', "left_out": ["x"], "n": 2}'
    found = event(line)
    assert found is not None
    assert dict(numbers(found)) == {"loss": 0.5, "n": 2.0}
