"""The checksums of the text files of a run folder, such as `config.yaml`: a file that has changed since is refused.

`checksums.json` has the last two of each file, and is written first: one of them is right, whenever the process dies.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from manyeyes.io.files import write_text
from manyeyes.io.parsing import parse_json

CHECKSUMS_FILE = "checksums.json"
OWN_KEY = "crc32"  # of the other entries
Checksums = Mapping[str, list[int]]


def write_checked_text(folder: Path, name: str, text: str) -> None:
    """Write a text file of a run folder, and its checksum."""
    try:
        checksums = dict(read_checksums(folder))
    except ValueError:
        checksums = {}  # what it said of other files is lost, and `manyeyes doctor` says so
    last, checksum = checksums.get(name, [])[-1:], zlib.crc32(text.encode())
    if last != [checksum]:
        checksums[name] = [*last, checksum]
        own = {OWN_KEY: [_own_checksum(checksums)]}
        write_text(folder / CHECKSUMS_FILE, json.dumps(checksums | own, indent=1) + "\n")
    write_text(folder / name, text)


def read_checksums(folder: Path) -> Checksums:
    """Return the checksums of a run folder, none if an older version wrote it; raise ValueError if they are damaged."""
    path = folder / CHECKSUMS_FILE
    if not path.exists():
        return {}
    try:
        checksums = dict(parse_json(path.read_bytes()))
        is_valid = checksums.pop(OWN_KEY) == [_own_checksum(checksums)]
    except (ValueError, TypeError, KeyError):
        is_valid = False
    if not is_valid:
        raise ValueError(f"{path} is damaged: restore it, or delete it to read the other files without checks")
    return checksums


def check_text(folder: Path, name: str, data: bytes) -> None:
    """Raise ValueError if this is not what the run wrote to a file; to be called after the file was read."""
    checksums = read_checksums(folder).get(name)
    if checksums is not None and zlib.crc32(data) not in checksums:
        fix = f"restore it, or delete {CHECKSUMS_FILE} if you changed it"
        raise ValueError(f"{folder / name} is damaged or was edited: {fix}")


def _own_checksum(checksums: Checksums) -> int:
    return zlib.crc32(json.dumps(checksums, sort_keys=True).encode())
