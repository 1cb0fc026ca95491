"""The options of each group, registered with Hydra: `algorithm=fedvc`, `model=resnet18`, `track=tensorboard`, ..."""

from __future__ import annotations

from functools import cache
from typing import Any

from hydra.core.config_store import ConfigStore

from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.config.build import AGGREGATES, COMPRESSIONS, describe_algorithm
from manyeyes.config.schema import (
    AggregateConfig,
    CompressConfig,
    Config,
    EngineConfig,
    ModelConfig,
    PrivacyConfig,
    StoreConfig,
    TrackConfig,
    WorldConfig,
)
from manyeyes.data.registry import DATASETS
from manyeyes.engines.select import ENGINES
from manyeyes.models import MODELS
from manyeyes.training.trackers import TRACKERS

OPTIONS: dict[str, dict[str, Any]] = {
    "data": {
        "synthetic": WorldConfig(),
        "store": StoreConfig(),
        **{name: StoreConfig(name=name, path=f"data/{name}") for name in DATASETS},
    },
    "model": {name: ModelConfig(name=name) for name in MODELS},
    "algorithm": {name: describe_algorithm(name, make()) for name, make in NAMED_ALGORITHMS.items()},
    "privacy": {
        "none": PrivacyConfig(),
        "central": PrivacyConfig(name="central"),
        "local": PrivacyConfig(name="local", noise=1.0),
        "flair": PrivacyConfig(name="central", clip=0.1, quantile=0.1, noise_cohort=5000),  # as the paper's PFL rows
    },
    "compress": {name: CompressConfig(name=name) for name in ("none", *COMPRESSIONS)},
    "aggregate": {name: AggregateConfig(name=name) for name in ("mean", *AGGREGATES)},
    "engine": {name: EngineConfig(name=name) for name in ("auto", *ENGINES)},
    "track": {"none": TrackConfig(), **{name: TrackConfig(to=[name]) for name in TRACKERS}},
}
DEFAULTS = {
    "data": "synthetic",
    "model": "lenet",
    "algorithm": "fedavg",
    "privacy": "none",
    "compress": "none",
    "aggregate": "mean",
    "engine": "auto",
    "track": "none",
}


@cache  # which Hydra remembers
def register() -> None:
    """Tell Hydra of every option, and of where it may write: a run's folder is made by the run alone."""
    store = ConfigStore.instance()
    store.store(name="settings", node=Config)
    for group, options in OPTIONS.items():
        for name, node in options.items():
            store.store(group=group, name=name, node=node)
    hydra = {"run": {"dir": "."}, "sweep": {"dir": "runs/${now:%Y-%m-%d_%H-%M-%S}_sweep"}, "output_subdir": None}
    quiet = [{"override hydra/job_logging": "none"}, {"override hydra/hydra_logging": "none"}]
    chosen = [{group: name} for group, name in DEFAULTS.items()]
    store.store(name="config", node={"defaults": ["settings", *chosen, "_self_", *quiet], "hydra": hydra})
