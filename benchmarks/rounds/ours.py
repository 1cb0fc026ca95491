"""Our engines, through `train`, as anybody would call it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.rounds.case import Case, Played
from benchmarks.rounds.works import Workload
from manyeyes.components import WeightUniformly
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.training.train import train

PRIVATE = CentralDP(epsilon=0, noise_multiplier=1.0, clipping_norm=0.1, target_quantile=0.1)


def play(case: Case, work: Workload) -> Played:
    asked = {"engine": case.engine, "precision": case.precision, "compile": case.compile, "workers": case.workers}
    settings: dict[str, Any] = {name: value for name, value in asked.items() if value not in ("", None)}
    algorithm = work.algorithm
    if case.private:
        algorithm = replace(algorithm, client_weighting=WeightUniformly(), privacy=PRIVATE)
    result = train(
        work.population(),
        work.module(),
        algorithm,
        preprocess=work.augment,
        rounds=case.warmup + case.rounds,
        device=case.device,
        progress=False,
        **settings,
    )
    rounds = [event for event in result.events if event["round"] > 0]
    return Played([event["seconds"] for event in rounds], [event["images"] for event in rounds], result.model)
