"""Files that grow, are cut and are replaced while they are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from manyeyes.io.tail import TailReader, read_small_file


def test_only_new_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    reader = TailReader(str(path))
    assert reader.read() == (True, [b"one", b"two"])
    assert reader.read() == (False, [])
    with path.open("ab") as file:
        file.write(b"three\n")
    assert reader.read() == (False, [b"three"])


def test_a_partly_written_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"round": 1}\n{"rou')
    reader = TailReader(str(path))
    assert reader.read() == (True, [b'{"round": 1}'])
    with path.open("ab") as file:
        file.write(b'nd": 2}\n')
    assert reader.read() == (False, [b'{"round": 2}'])


@pytest.mark.parametrize("content", [b"one\n", b"one\nTWO\n", b"one\nTWO\nthree\nfour\n"])
def test_a_file_that_was_cut_and_has_grown_is_read_from_its_start(tmp_path: Path, content: bytes) -> None:
    """When a run resumes, the lines after its checkpoint are replaced by others, which may be as long."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    reader = TailReader(str(path))
    reader.read()
    path.write_bytes(content)
    assert reader.read() == (True, content.split(b"\n")[:-1])


def test_a_file_that_replaces_another_is_read_from_its_start(tmp_path: Path) -> None:
    path, replacement = tmp_path / "lines", tmp_path / "replacement"
    path.write_bytes(b"one\n")
    reader = TailReader(str(path))
    reader.read()
    replacement.write_bytes(b"one\ntwo\n")
    replacement.replace(path)
    assert reader.read() == (True, [b"one", b"two"])


def test_a_window_starts_with_its_first_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%05d\n" % number for number in range(100)))
    reader = TailReader(str(path), window=20)  # three lines of six bytes, and the end of another
    assert reader.read() == (True, [b"00097", b"00098", b"00099"])
    assert not reader.is_complete


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret\n")
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("link", "symbolic"), ("folder", "not a regular file"), ("pipe", "not a regular file")):
        with pytest.raises(OSError, match=message):
            TailReader(str(tmp_path / name)).read()


def test_a_large_file_is_not_read_as_a_small_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_small_file(str(tmp_path / "file"), max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="too large"):
        read_small_file(str(tmp_path / "file"), max_bytes=4)
