"""The settings of a federated run: what is trained, in the words of `manyeyes run`, and what is asked of clients."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from hydra import compose, initialize
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from manyeyes.components.samplers import Centralized
from manyeyes.config.build import build_augment, build_whole
from manyeyes.config.errors import check_names, format_error, is_config_error
from manyeyes.config.presets import register
from manyeyes.core.algorithm import Algorithm
from manyeyes.data.preprocess import Preprocess
from manyeyes.privacy.mechanisms import LocalDP


def option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class FederationConfig:
    """The configuration of the Flower app, which `flwr run --run-config` may change."""

    settings: str = option("", "what is trained, in the words of manyeyes run")
    folder: str = option("runs/federation", "where the server keeps the run")
    resume: str = option("", "the folder of a run to continue")
    clients: int = option(0, "clients that must be there at the start; 0: as many as a cohort has")
    join_timeout: float = option(120.0, "seconds that the server waits for them")
    timeout: float = option(600.0, "seconds that a client has for its answer")
    min_clients: int = option(1, "good answers that a round needs")
    max_retries: int = option(2, "how often a round with fewer asks the missing clients again, before the run stops")
    retry_delay: float = option(5.0, "seconds before it asks again")
    max_examples: int = option(100_000, "a client that says it holds more is left out")
    max_update_norm: float = option(1e6, "an update longer than this is left out")
    test: str = option("", "a store of the server's own to evaluate on; empty: clients evaluate on their test parts")
    stores: str = option("", "a folder of one-user stores, for nodes without store=... of their own: a simulation's")

    def __post_init__(self) -> None:
        least = {
            "clients": 0,
            "join_timeout": 0,
            "min_clients": 1,
            "max_retries": 0,
            "retry_delay": 0,
            "max_examples": 1,
        }
        for name, value in least.items():
            if not getattr(self, name) >= value:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {value}")
        for name in ("timeout", "max_update_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> FederationConfig:
        """From Flower's run configuration."""
        known: dict[str, type] = {f.name: type(f.default) for f in fields(FederationConfig)}
        found: dict[str, Any] = {}
        for name, value in config.items():
            if name not in known:
                raise ValueError(f"{name} is no setting of a federated run: choose {', '.join(known)}")
            kind = known[name]
            right = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if not right or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}: it must be of type {kind.__name__}")
            found[name] = kind(value)
        return FederationConfig(**found)


@dataclass(frozen=True, eq=False)
class TrainingSpec:
    """What is trained; the same at the server and at every client."""

    config: DictConfig
    algorithm: Algorithm
    augment: Preprocess

    @property
    def seed(self) -> int:
        return int(self.config.seed)


@lru_cache(maxsize=32)
def parse_settings(words: str) -> TrainingSpec:
    """From the words of `manyeyes run`; what has no meaning between separate clients is refused."""
    register()
    GlobalHydra.instance().clear()
    try:
        with initialize(version_base="1.3", config_path=None):
            config = compose("config", overrides=shlex.split(words))
    except Exception as error:
        if is_config_error(error):
            raise ValueError(format_error(error)) from None
        raise
    check_names(config)
    algorithm = build_whole(config)
    if config.best_on:
        raise ValueError("best_on chooses a model on one population's photos: leave it empty")
    if (reason := _refuse(algorithm)) is not None:
        raise ValueError(reason)
    return TrainingSpec(config, algorithm, build_augment(config.augment))


def _refuse(algorithm: Algorithm) -> str | None:
    if isinstance(algorithm.sampler, Centralized):
        return "centralised training has everyone's photos in one place: there is nothing to federate"
    if isinstance(algorithm.privacy, LocalDP):
        return "noise that clients add themselves is simulated only: use privacy=central"
    for slot in ("personal_model", "adaptation"):
        if getattr(algorithm, slot) is not None:
            return f"{type(getattr(algorithm, slot)).__name__} is simulated only: use manyeyes run"
    return None
