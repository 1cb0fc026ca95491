"""A ready Flower app: a folder for `flwr run`, with the settings in it."""

import json
from dataclasses import fields
from pathlib import Path

from manyeyes.flower.config import FederationConfig
from manyeyes.io.files import write_text

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
MODULES = {
    "__init__.py": "",
    "server_app.py": '"""The server."""\n\nfrom manyeyes.flower.server import build_server\n\napp = build_server()\n',
    "client_app.py": '"""A client."""\n\nfrom manyeyes.flower.client import build_client\n\napp = build_client()\n',
}


def write_app(folder: Path, config: FederationConfig) -> None:
    """Write the app to an empty or new folder."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose a new folder.")
    (folder / "federated").mkdir(parents=True)
    settings = [f"# {f.metadata['help']}\n{f.name} = {json.dumps(getattr(config, f.name))}\n" for f in fields(config)]
    for name, text in MODULES.items():
        write_text(folder / "federated" / name, text)
    write_text(folder / "pyproject.toml", PYPROJECT.format(config="".join(settings)))
