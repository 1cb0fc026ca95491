"""How a learning rate changes over rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from manyeyes.components.validation import require_fraction, require_int, require_positive
from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.registry import option


@dataclass(frozen=True)
class Schedule:
    """A factor for each round: a linear warm-up, then constant, or falling to `final` over `rounds` rounds.

    The first round already learns: a warm-up over n rounds starts at 1/n, not at 0.
    """

    kind: str = option("constant", "constant, polynomial or cosine")
    rounds: int = option(0, "length of the schedule, warm-up included; 0: the whole run")
    warmup: int = option(0, "rounds of linear warm-up")
    final: float = option(0.0, "factor at the end of a polynomial or cosine schedule")
    power: float = option(1.0, "power of the polynomial")

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "polynomial", "cosine"):
            raise ValueError(f"schedule.kind={self.kind!r} is unknown: choose constant, polynomial or cosine")
        require_int("schedule.rounds", self.rounds, 0)
        require_int("schedule.warmup", self.warmup, 0)
        require_positive("schedule.power", self.power)
        if self.final != 1:
            require_fraction("schedule.final", self.final)
        if self.kind != "constant" and self.rounds and self.rounds <= self.warmup:
            raise ValueError(
                f"schedule.rounds={self.rounds} of a {self.kind} schedule does not outlast schedule.warmup="
                f"{self.warmup}: lengthen the schedule or shorten the warm-up"
            )

    def factor(self, round: int) -> float:
        """Return the factor of round 0, 1, ..."""
        if round < self.warmup:
            return (round + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        if not self.rounds:
            raise ValueError(
                "schedule.rounds=0 stands for the whole run: call resolve_schedules(algorithm, rounds) first"
            )
        progress = min((round - self.warmup) / (self.rounds - self.warmup), 1.0)
        remaining = (1 + math.cos(math.pi * progress)) / 2 if self.kind == "cosine" else (1 - progress) ** self.power
        return self.final + (1 - self.final) * remaining


def resolve_schedules(algorithm: Algorithm, rounds: int) -> Algorithm:
    """Return the algorithm with every schedule of length 0 as long as the run."""
    resolved: dict[str, Any] = {}
    for slot in SLOTS:
        component: Any = getattr(algorithm, slot)
        schedule = getattr(component, "schedule", None)
        if isinstance(schedule, Schedule) and schedule.kind != "constant" and not schedule.rounds:
            resolved[slot] = replace(component, schedule=replace(schedule, rounds=rounds))
    return replace(algorithm, **resolved)
