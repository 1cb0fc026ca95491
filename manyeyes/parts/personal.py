"""Which layers stay with the client."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Layers:
    """The layers whose names match a pattern are trained and kept by each client, and never sent."""

    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            raise ValueError(
                f"personal layers are a list of name patterns, and got {self.patterns!r}: put it in a list"
            )
        if not self.patterns:
            raise ValueError("personal layers need at least one name pattern, such as 'fc.*'")

    def keeps(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)
