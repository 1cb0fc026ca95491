"""Federated visual classification: many people's images train one model while the images stay with their owners.

import manyeyes as me
population = me.make_synthetic(me.SyntheticImages(users=500, size=32))
result = me.train(population, "lenet", me.fedavgm(lr=0.03), rounds=50)
result.curve().rounds_to(0.5)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyeyes.algorithms import *  # noqa: F403
    from manyeyes.core.algorithm import Algorithm as Algorithm
    from manyeyes.core.population import MultiLabels as MultiLabels
    from manyeyes.core.population import Population as Population
    from manyeyes.core.population import SingleLabels as SingleLabels
    from manyeyes.data.decode import read_image as read_image
    from manyeyes.data.preprocess import Preprocess as Preprocess
    from manyeyes.data.synthetic.dataset import SyntheticImages as SyntheticImages
    from manyeyes.data.synthetic.dataset import make_synthetic as make_synthetic
    from manyeyes.models import build_model as build_model
    from manyeyes.report.plotting import plot as plot
    from manyeyes.training.loading import load_run as load_run
    from manyeyes.training.loading import load_runs as load_runs
    from manyeyes.training.result import Result as Result
    from manyeyes.training.train import train as train
    from manyeyes.training.trained_model import TrainedModel as TrainedModel
    from manyeyes.training.trained_model import load_model as load_model

_MODULES = {  # of the public names; every other public name is a named algorithm
    "Algorithm": "core.algorithm",
    "MultiLabels": "core.population",
    "Population": "core.population",
    "Preprocess": "data.preprocess",
    "Result": "training.result",
    "SingleLabels": "core.population",
    "SyntheticImages": "data.synthetic.dataset",
    "TrainedModel": "training.trained_model",
    "build_model": "models",
    "load_model": "training.trained_model",
    "load_run": "training.loading",
    "load_runs": "training.loading",
    "make_synthetic": "data.synthetic.dataset",
    "plot": "report.plotting",
    "read_image": "data.decode",
    "train": "training.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import manyeyes` does not load PyTorch."""
    if name == "__version__":
        return import_module("importlib.metadata").version("manyeyes")
    if name.startswith("_"):
        raise AttributeError(f"module 'manyeyes' has no attribute {name!r}")
    if name in _MODULES:
        return getattr(import_module(f"manyeyes.{_MODULES[name]}"), name)
    from manyeyes.algorithms import NAMED_ALGORITHMS

    if name not in NAMED_ALGORITHMS:
        components, suggestion = (
            import_module("manyeyes.components"),
            import_module("manyeyes.core.registry").suggestion,
        )
        is_component = hasattr(components, name)
        hint = f": from manyeyes.components import {name}" if is_component else suggestion(name, __dir__())
        raise AttributeError(f"module 'manyeyes' has no attribute {name!r}{hint}")
    return NAMED_ALGORITHMS[name]


def __dir__() -> list[str]:
    from manyeyes.algorithms import NAMED_ALGORITHMS

    return sorted([*_MODULES, *NAMED_ALGORITHMS, "__version__"])
