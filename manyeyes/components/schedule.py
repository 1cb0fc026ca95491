"""How a learning rate changes over rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from manyeyes.components.validation import require_fraction, require_int, require_positive


@dataclass(frozen=True)
class Schedule:
    """A factor for each round: a linear warm-up, then constant, or falling to `final` over `rounds` rounds.

    The first round already learns: warm-up over n rounds starts at 1/n, not at 0.
    """

    kind: str = "constant"  # constant, polynomial or cosine
    rounds: int = 0  # length of the whole schedule, warm-up included (not for constant)
    warmup: int = 0
    final: float = 0.0  # the factor at the end
    power: float = 1.0  # of the polynomial

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "polynomial", "cosine"):
            raise ValueError(f"schedule {self.kind!r} is unknown: choose constant, polynomial or cosine")
        require_int("warm-up", self.warmup, 0)
        require_positive("power", self.power)
        if self.final != 1:
            require_fraction("final", self.final)
        if self.kind != "constant" and self.rounds <= self.warmup:
            raise ValueError(
                f"a {self.kind} schedule of {self.rounds} rounds does not outlast its warm-up of {self.warmup}"
            )

    def factor(self, round: int) -> float:
        """The factor of round 0, 1, ..."""
        if round < self.warmup:
            return (round + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        done = min((round - self.warmup) / (self.rounds - self.warmup), 1.0)
        left = (1 + math.cos(math.pi * done)) / 2 if self.kind == "cosine" else (1 - done) ** self.power
        return self.final + (1 - self.final) * left
