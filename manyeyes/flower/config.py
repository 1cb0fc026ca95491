"""The configuration of the Flower app: what is trained, and the limits that clients must respect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from manyeyes.core.registry import option, suggestion

MINIMUM = {
    "num_clients": 0,
    "join_timeout": 0,
    "min_clients": 1,
    "max_retries": 0,
    "retry_delay": 0,
    "max_examples": 1,
}


@dataclass(frozen=True)
class FederationConfig:
    """Settings of the Flower app; `flwr run --run-config` overrides them."""

    settings: str = option("", "what is trained: settings of manyeyes run")
    folder: str = option("runs/flower", "the run folder, on the server")
    resume: str = option("", "the run folder of a run to resume")
    num_clients: int = option(0, "clients that must join before round 1; 0: as many as a cohort has")
    join_timeout: float = option(120.0, "seconds that the server waits for them")
    reply_timeout: float = option(600.0, "seconds that a client has for a reply")
    min_clients: int = option(1, "valid replies that a round needs")
    max_retries: int = option(2, "how often a round with fewer replies asks the missing clients again")
    retry_delay: float = option(5.0, "seconds before it asks them again")
    max_examples: int = option(100_000, "a client that reports more images is rejected")
    max_update_norm: float = option(1e6, "an update of a larger norm is rejected")
    test_store: str = option("", "a store on the server to evaluate on; empty: clients evaluate on their test images")
    stores: str = option("", "a folder of one-user stores for nodes without store=... in their node config")

    def __post_init__(self) -> None:
        for name, minimum in MINIMUM.items():
            if not getattr(self, name) >= minimum:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {minimum}.")
        for name in ("reply_timeout", "max_update_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be above 0.")

    @staticmethod
    def from_config(run_config: Mapping[str, Any]) -> FederationConfig:
        """Return the configuration in Flower's run config."""
        types: dict[str, type] = {f.name: type(f.default) for f in fields(FederationConfig)}
        values: dict[str, Any] = {}
        for name, value in run_config.items():
            if name not in types:
                raise ValueError(
                    f"Unknown setting {name!r} of the app{suggestion(name, types)}: choose {', '.join(types)}."
                )
            expected = types[name]
            is_expected = isinstance(value, expected) or (expected is float and isinstance(value, int))
            if not is_expected or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}: it must be of type {expected.__name__}.")
            values[name] = expected(value)
        return FederationConfig(**values)
