"""Our engines, through `train`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.rounds.case import BenchCase, RunnerResult
from benchmarks.rounds.workloads import Workload
from manyeyes.components import WeightUniformly
from manyeyes.privacy.mechanisms import CentralDP
from manyeyes.training.train import train

PRIVACY = CentralDP(epsilon=0, noise_multiplier=1.0, clipping_norm=0.1, target_quantile=0.1)


def run(case: BenchCase, workload: Workload) -> RunnerResult:
    """Train the workload."""
    options = {"engine": case.engine, "precision": case.precision, "compile": case.compile, "workers": case.workers}
    given_options: dict[str, Any] = {name: value for name, value in options.items() if value not in ("", None)}
    algorithm = workload.algorithm
    if case.private:
        algorithm = replace(algorithm, client_weighting=WeightUniformly(), privacy=PRIVACY)
    result = train(
        workload.population(),
        workload.module(),
        algorithm,
        preprocess=workload.preprocess,
        rounds=case.warmup + case.rounds,
        device=case.device,
        progress=False,
        unprotected_statistics=True,
        **given_options,
    )
    rounds = [event for event in result.events if event["round"] > 0]
    return RunnerResult([event["seconds"] for event in rounds], [event["num_images"] for event in rounds], result.model)
