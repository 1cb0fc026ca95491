"""Damage to files, as a failing disk or a bad copy does it."""

from __future__ import annotations

from pathlib import Path


def flip_bit(path: Path, bit: int) -> None:
    """Change one bit of a file: bit 0 is the lowest one of its first byte."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
