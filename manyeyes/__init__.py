"""Federated visual classification: many people's photos train one model, and the photos stay where they are.

import manyeyes as me
people = me.make_world(me.World(users=500, size=32))
result = me.train(people, "lenet", me.fedavgm(lr=0.03), rounds=50)
result.curve().rounds_to(0.5)
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyeyes.algorithm import Algorithm
    from manyeyes.algorithms import (
        centralised,
        ditto,
        fedadagrad,
        fedadam,
        fedavg,
        fedavgm,
        fedbn,
        fedir,
        fednova,
        fedper,
        fedprox,
        fedrep,
        fedvc,
        fedyogi,
        finetuned,
        local_only,
        mimelite,
        scaffold,
    )
    from manyeyes.data.augment import Augment
    from manyeyes.data.world import World
    from manyeyes.data.world import make as make_world
    from manyeyes.models import build as build_model
    from manyeyes.population import MultiLabels, Population, SingleLabels
    from manyeyes.run.result import Result
    from manyeyes.run.training import train

__version__ = version("manyeyes")

__all__ = [
    "Algorithm",
    "Augment",
    "MultiLabels",
    "Population",
    "Result",
    "SingleLabels",
    "World",
    "build_model",
    "centralised",
    "ditto",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedbn",
    "fedir",
    "fednova",
    "fedper",
    "fedprox",
    "fedrep",
    "fedvc",
    "fedyogi",
    "finetuned",
    "local_only",
    "make_world",
    "mimelite",
    "scaffold",
    "train",
]

_PLACES = {  # the others are algorithms
    "Algorithm": ("algorithm", "Algorithm"),
    "Augment": ("data.augment", "Augment"),
    "MultiLabels": ("population", "MultiLabels"),
    "Population": ("population", "Population"),
    "Result": ("run.result", "Result"),
    "SingleLabels": ("population", "SingleLabels"),
    "World": ("data.world", "World"),
    "build_model": ("models", "build"),
    "make_world": ("data.world", "make"),
    "train": ("run.training", "train"),
}


def __getattr__(name: str) -> Any:
    """Load a room when it is first asked for: `import manyeyes` and `manyeyes --version` do not wait for PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module 'manyeyes' has no attribute {name!r}")
    room, inside = _PLACES.get(name, ("algorithms", name))
    return getattr(import_module(f"manyeyes.{room}"), inside)
