"""How a run goes, apart from what it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from manyeyes.training.trackers import TRACKERS


@dataclass(frozen=True)
class RunConfig:
    """The words that `train` takes beside data, model and algorithm."""

    rounds: int = 100
    seed: int = 0
    evaluate_every: int = 10  # rounds between evaluations; 0: only the first and the last
    eval_split: str = "test"  # the split that is evaluated
    evaluate_every_fraction: float = (
        0.0  # more often while few rounds are played: every so large a share of them; 0: not
    )
    max_local_batches: int = 0  # end when the largest clients of the rounds have taken so many; 0: only by rounds
    select_best_on: str = ""  # test and keep the model of the lowest loss on this split; empty: the last
    checkpoint_seconds: float = 60.0  # at most so much work is lost by a crash
    engine: str = "auto"
    device: str = "auto"
    precision: str = "auto"  # float32, tf32 or bf16; auto: float32, on a GPU with the products of TF32
    compile: bool = True  # steps, on a GPU
    workers: int = 0  # processes on a CPU; 0: one a core
    num_streams: int = 0  # clients that train at the same time on a GPU; 0: the number that is best
    image_storage: str = "auto"  # where images are kept: device, host, or auto: on a GPU where they fit
    prefetch_mib: int = 1024  # MiB of a store's images that are read for the next round while one trains
    client_state_cache_mib: int = 1024  # MiB of what clients keep that stay in memory; the rest is in the run's folder
    trackers: tuple[str, ...] = ()
    progress: bool | None = None  # None: if somebody looks
    title: str = "training"

    def __post_init__(self) -> None:
        for name, least in (
            ("rounds", 1),
            ("evaluate_every", 0),
            ("evaluate_every_fraction", 0),
            ("max_local_batches", 0),
            ("checkpoint_seconds", 0),
            ("seed", 0),
            ("prefetch_mib", 0),
            ("client_state_cache_mib", 0),
        ):
            if not getattr(self, name) >= least:  # not a number is not enough either
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {least}")
        for tracker in self.trackers:
            if tracker not in TRACKERS:
                raise ValueError(f"tracker {tracker!r} is unknown: choose {', '.join(TRACKERS)}")

    def evaluates_after(self, round: int) -> bool:
        """Whether the model is evaluated after so many rounds, apart from the first and the last."""
        if not self.evaluate_every:
            return False
        early = (
            2 ** int(math.log2(max(1.0, self.evaluate_every_fraction * round)))
            if self.evaluate_every_fraction
            else math.inf
        )
        return round % min(self.evaluate_every, early) == 0
