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

from manyeyes.algorithm import Algorithm
from manyeyes.conf.build import build_augment, build_whole
from manyeyes.conf.errors import check_names, is_about_settings, sentence
from manyeyes.conf.presets import register
from manyeyes.data.augment import Augment
from manyeyes.parts.cohort import Pooled
from manyeyes.parts.privacy import LocalDP


def rule(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Rules:
    """The configuration of the Flower app, which `flwr run --run-config` may change."""

    settings: str = rule("", "what is trained, in the words of manyeyes run")
    folder: str = rule("runs/federation", "where the server keeps the run")
    resume: str = rule("", "the folder of a run to continue")
    clients: int = rule(0, "clients that must be there at the start; 0: as many as a cohort has")
    wait: float = rule(120.0, "seconds that the server waits for them")
    timeout: float = rule(600.0, "seconds that a client has for its answer")
    least_clients: int = rule(1, "good answers that a round needs")
    repeats: int = rule(2, "how often a round with fewer asks the missing clients again, before the run stops")
    pause: float = rule(5.0, "seconds before it asks again")
    most_examples: int = rule(100_000, "a client that says it holds more is left out")
    most_length: float = rule(1e6, "an update longer than this is left out")
    test: str = rule("", "a store of the server's own to evaluate on; empty: clients evaluate on their test parts")
    stores: str = rule("", "a folder of one-user stores, for nodes without store=... of their own: a simulation's")

    def __post_init__(self) -> None:
        least = {"clients": 0, "wait": 0, "least_clients": 1, "repeats": 0, "pause": 0, "most_examples": 1}
        for name, value in least.items():
            if not getattr(self, name) >= value:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {value}")
        for name in ("timeout", "most_length"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0")

    @staticmethod
    def of(config: Mapping[str, Any]) -> Rules:
        """From Flower's run configuration."""
        known: dict[str, type] = {f.name: type(f.default) for f in fields(Rules)}
        found: dict[str, Any] = {}
        for name, value in config.items():
            if name not in known:
                raise ValueError(f"{name} is no setting of a federated run: choose {', '.join(known)}")
            kind = known[name]
            right = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if not right or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}: it must be of type {kind.__name__}")
            found[name] = kind(value)
        return Rules(**found)


@dataclass(frozen=True, eq=False)
class Recipe:
    """What is trained; the same at the server and at every client."""

    config: DictConfig
    algorithm: Algorithm
    augment: Augment

    @property
    def seed(self) -> int:
        return int(self.config.seed)


@lru_cache(maxsize=32)
def read_recipe(words: str) -> Recipe:
    """From the words of `manyeyes run`; what has no meaning between separate clients is refused."""
    register()
    GlobalHydra.instance().clear()
    try:
        with initialize(version_base="1.3", config_path=None):
            config = compose("config", overrides=shlex.split(words))
    except Exception as error:
        if is_about_settings(error):
            raise ValueError(sentence(error)) from None
        raise
    check_names(config)
    algorithm = build_whole(config)
    if config.best_on:
        raise ValueError("best_on chooses a model on one population's photos: leave it empty")
    if (reason := _refuse(algorithm)) is not None:
        raise ValueError(reason)
    return Recipe(config, algorithm, build_augment(config.augment))


def _refuse(algorithm: Algorithm) -> str | None:
    if isinstance(algorithm.cohort, Pooled):
        return "centralised training has everyone's photos in one place: there is nothing to federate"
    if isinstance(algorithm.privacy, LocalDP):
        return "noise that clients add themselves is simulated only: use privacy=central"
    for slot in ("beside", "adapt"):
        if getattr(algorithm, slot) is not None:
            return f"{type(getattr(algorithm, slot)).__name__} is simulated only: use manyeyes run"
    return None
