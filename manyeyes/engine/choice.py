"""Which engine, on which device."""

from __future__ import annotations

import torch

from manyeyes.data.augment import Augment
from manyeyes.engine.reference import Reference
from manyeyes.models.flat import FlatModel
from manyeyes.population import Population

ENGINES = {"reference": Reference}


def choose_device(name: str) -> torch.device:
    """`auto`: the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is unknown: choose auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda is asked for and this machine has none that PyTorch can use: choose cpu")
    return device


def choose_engine(
    name: str, model: FlatModel, population: Population, augment: Augment, device: torch.device
) -> Reference:
    """The engine of that name, ready to train on `population`."""
    return ENGINES[choose_engine_name(name, device)](model, population, augment, device)


def choose_engine_name(name: str, device: torch.device) -> str:
    """`auto`: the fastest that can do the work."""
    if name == "auto":
        return "reference"
    if name not in ENGINES:
        raise ValueError(f"engine {name!r} is unknown: choose auto or {', '.join(ENGINES)}")
    return name
