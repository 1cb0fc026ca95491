"""The settings of a run, apart from what it trains and how fast: the one place that declares them."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypedDict

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.registry import option, options_of, settings_class, suggestion
from manyeyes.engines.base import EngineOptions


@settings_class("")
class RunConfig:
    """How long a run is, and what it evaluates and saves."""

    rounds: int = option(100, "rounds of training", minimum=1, maximum=1e9)
    seed: int = option(0, "seed of everything random", minimum=0)
    evaluate_every: int = option(10, "rounds between evaluations; 0: only before and after training", minimum=0)
    evaluate_every_fraction: float = option(
        0.0, "longest interval as a fraction of past rounds; 0: no limit", minimum=0
    )
    eval_split: str = option("test", "split that is evaluated")
    select_best_on: str = option("", "split whose loss selects the model; empty: keep the last model")
    max_local_batches: int = option(0, "stop when the largest clients' batches sum to this; 0: no limit", minimum=0)
    checkpoint_seconds: float = option(60.0, "seconds between checkpoints", minimum=0)
    client_state_cache_mib: int = option(1024, "MiB of client states in memory; the rest are on disk", minimum=0)
    example_images: bool = option(True, "keep a few evaluated images for the report; never with privacy")
    unprotected_statistics: bool = option(False, "with privacy: record losses, counts and times of training users too")

    def withholds_statistics(self, algorithm: Algorithm) -> bool:
        """Return whether a run is private and records nothing that its guarantee does not cover."""
        return algorithm.privacy is not None and not self.unprotected_statistics

    def evaluates_after(self, round: int) -> bool:
        """Return whether the model is evaluated after this round, apart from the first and the last evaluation."""
        if not self.evaluate_every:
            return False
        interval = self.evaluate_every
        if self.evaluate_every_fraction:
            limit = max(1.0, self.evaluate_every_fraction * round)
            interval = min(interval, 2 ** int(math.log2(limit)))
        return round % interval == 0


class TrainOptions(TypedDict, total=False):
    """The types of the options of `train`, those of `RunConfig` and of `EngineOptions`, for editors and type checkers."""

    rounds: int
    seed: int
    evaluate_every: int
    evaluate_every_fraction: float
    eval_split: str
    select_best_on: str
    max_local_batches: int
    checkpoint_seconds: float
    client_state_cache_mib: int
    unprotected_statistics: bool
    example_images: bool
    engine: str
    device: str
    precision: str
    compile: bool
    workers: int
    num_streams: int
    threads: int
    image_storage: str
    features: str
    prefetch_mib: int


TRAIN_OPTIONS = (*options_of(RunConfig), *options_of(EngineOptions))


def split_options(options: Mapping[str, Any]) -> tuple[RunConfig, EngineOptions]:
    """Return the keyword arguments of `train` as settings of the run and of the engine."""
    names = {kind: [declared.name for declared in fields(kind)] for kind in (RunConfig, EngineOptions)}
    known = [*names[RunConfig], *names[EngineOptions]]
    for name in options:
        if name not in known:
            raise ValueError(f"Unknown option {name!r} of train{suggestion(name, known)}: it has {', '.join(known)}.")
    run, engine = ({name: options[name] for name in known if name in options} for known in names.values())
    return RunConfig(**run), EngineOptions(**engine)
