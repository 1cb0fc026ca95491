"""The Flower app: its configuration, and a folder for `flwr run` with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from manyeyes.components.bounded_mean import CLIP_HELP, OPPOSED_HELP, REJECT_HELP, WEIGHT_HELP
from manyeyes.core.registry import check_options, option, suggestion
from manyeyes.io.files import write_text

MAX_EXAMPLES = 2**24  # of a client: an index in memory has an entry for each
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "federated"
version = "1.0.0"
description = "A model trained on images of many users, which stay where they are"
license = "Apache-2.0"
dependencies = ["manyeyes[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "manyeyes"

[tool.flwr.app.components]
serverapp = "federated.server_app:app"
clientapp = "federated.client_app:app"

[tool.flwr.app.config]
{config}"""
MODULES = {  # flwr run looks for an assignment to `app`
    "__init__.py": "",
    "server_app.py": '"""The server."""\n\nfrom manyeyes.flower import server\n\napp = server.app\n',
    "client_app.py": '"""A client."""\n\nfrom manyeyes.flower import client\n\napp = client.app\n',
}


@dataclass(frozen=True)
class FederationConfig:
    """Settings of the Flower app; `flwr run --run-config` overrides them."""

    settings: str = option("", "what is trained: settings of manyeyes run")
    folder: str = option("runs/flower", "the run folder, on the server")
    resume: str = option("", "the run folder of a run to resume")
    num_clients: int = option(0, "clients that must join before round 1; 0: as many as a cohort has", minimum=0)
    join_timeout: float = option(120.0, "seconds that the server waits for them", minimum=0)
    reply_timeout: float = option(600.0, "seconds that a client has for a reply", above=0)
    min_clients: int = option(1, "valid replies that a round needs", minimum=1)
    max_retries: int = option(2, "how often a round with fewer replies asks the missing clients again", minimum=0)
    retry_delay: float = option(5.0, "seconds before it asks them again", minimum=0)
    max_examples: int = option(
        100_000, "a client that reports more images is rejected", minimum=1, maximum=MAX_EXAMPLES
    )
    max_update_norm: float = option(1e6, "an update of a larger norm is rejected", above=0)
    max_norm_ratio: float = option(2.0, f"{CLIP_HELP}; 0: none is", minimum=0)
    reject_norm_ratio: float = option(8.0, f"{REJECT_HELP}; 0: none is", minimum=0)
    reject_opposed: bool = option(True, OPPOSED_HELP)
    max_weight_ratio: float = option(1.5, f"{WEIGHT_HELP}; 0: no limit", minimum=0)
    test_store: str = option("", "a store on the server to evaluate on; empty: clients evaluate on their test images")
    stores: str = option("", "a folder of one-user stores for nodes without store=... in their node config")

    def __post_init__(self) -> None:
        check_options(self, "")
        if 0 < self.max_weight_ratio < 1:
            fix = "set it to at least 1 equal share, or to 0 for no limit"
            raise ValueError(f"max_weight_ratio is {self.max_weight_ratio:g}: {fix}")

    @staticmethod
    def from_config(run_config: Mapping[str, Any]) -> FederationConfig:
        """Return the configuration in Flower's run config."""
        names = [field.name for field in fields(FederationConfig)]
        for name in run_config:
            if name not in names:
                hint, choices = suggestion(name, names), ", ".join(names)
                raise ValueError(f"Unknown setting {name!r} of the app{hint}: choose {choices}")
        return FederationConfig(**run_config)


def write_app(folder: Path, config: FederationConfig) -> None:
    """Write the app to an empty or new folder."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose a new folder.")
    (folder / "federated").mkdir(parents=True)
    settings = [f"# {f.metadata['help']}\n{f.name} = {json.dumps(getattr(config, f.name))}\n" for f in fields(config)]
    for name, text in MODULES.items():
        write_text(folder / "federated" / name, text)
    write_text(folder / "pyproject.toml", PYPROJECT.format(config="".join(settings)))
