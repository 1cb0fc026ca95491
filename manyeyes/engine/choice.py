"""Which engine, on which device."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from manyeyes.data.augment import Augment
from manyeyes.engine.lanes import Lanes
from manyeyes.engine.precision import choose_precision
from manyeyes.engine.ranks import Ranks
from manyeyes.engine.reference import Reference
from manyeyes.engine.workers import available, cores, unsendable
from manyeyes.models.cpu import for_cpu
from manyeyes.models.flat import FlatModel
from manyeyes.models.habits import habits
from manyeyes.population import Population

ENGINES = ("reference", "ranks", "vector", "lanes")
BEST: dict[str, tuple[str, ...]] = {"cuda": ("lanes", "reference"), "cpu": ("ranks", "reference")}  # `auto`, in order
WIDTH = 64  # clients side by side, at most
BESIDE = 2  # lanes of `vector`: one works while the other starts a kernel or ends one
FULL = 32  # clients side by side that fill a GPU: so many are not divided among lanes
LANES = range(8, 17)  # of `lanes`: fewer leave an H200 idle, more bring nothing
SMALL, SIDE = 2_000_000, 64  # trained parameters and pixels of models whose clients run side by side on a GPU


@dataclass(frozen=True)
class Means:
    """What an engine may use."""

    precision: str = "auto"
    compile: bool = True  # on a GPU; Inductor's CPU code is slower than PyTorch's own, and has been wrong
    workers: int = 0  # processes of `ranks`; 0: one a core
    lanes: int = 0  # lanes of `lanes`; 0: the number that is best here
    apart: bool = False  # whether the algorithm looks at each client's update: packs it, or compares it with others
    sent: tuple[object, ...] = ()  # the parts of the algorithm that workers are sent
    processes: int = 1  # of torchrun, that train together

    def __post_init__(self) -> None:
        for name in ("workers", "lanes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1, or 0 for the best number")


def choose_device(name: str) -> torch.device:
    """`auto`: the GPU where there is one."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # or lanes would wait for each other in 8 queues
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is unknown: choose auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda is asked for and this machine has none that PyTorch can use: choose cpu")
    if device == torch.device("cuda") and "LOCAL_RANK" in os.environ:  # each process that torchrun started has its own
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def choose_engine(
    name: str,
    model: FlatModel,
    population: Population,
    augment: Augment,
    device: torch.device,
    means: Means,
    clients: int = LANES[0],
) -> Reference | Ranks | Lanes:
    """The engine of that name, or with `auto` the fastest that can do the work, ready to train on `population`.

    `clients` is how many of them a round is expected to have.
    """
    precision = choose_precision(means.precision, device)
    full = "float32" if precision == "tf32" else precision  # of those that never take a GPU's shortcut
    shape = augment.shape(*population.image_shape[:2])
    if name == "auto" and device.type == "cpu" and means.processes > 1:  # each is what a worker of `ranks` is
        return Reference(FlatModel(for_cpu(model.module)), population, augment, device, full)
    if name == "auto":
        best = BEST[device.type]
        if device.type == "cuda" and model.trained <= SMALL and max(shape) <= SIDE:
            best = ("vector", *best)
        name = next(one for one in best if one == best[-1] or cannot(one, model, shape, device, means) is None)
    elif name not in ENGINES:
        raise ValueError(f"engine {name!r} is unknown: choose auto or {', '.join(ENGINES)}")
    if reason := cannot(name, model, shape, device, means):
        raise ValueError(f"engine {name} cannot do this: {reason}; choose another, or auto")
    if name == "reference":
        return Reference(model, population, augment, device, full)
    if name == "ranks":
        return Ranks(model, population, augment, device, means.workers or None, full)
    lanes, width = means.lanes or lanes_for(clients), 1
    if name == "vector":
        lanes = means.lanes or min(BESIDE, clients)
        width = width_for(clients, lanes)
    compile = means.compile and device.type == "cuda"
    return Lanes(model, population, augment, device, lanes=lanes, width=width, precision=precision, compile=compile)


def lanes_for(clients: int) -> int:
    """How many lanes clients of one size keep busy to the end: a pure function, for a run to repeat bit for bit."""
    return clients if clients in range(1, LANES[-1] + 1) else min(LANES, key=lambda lanes: -(-clients // lanes) * lanes)


def width_for(clients: int, lanes: int) -> int:
    """How many clients of one size run side by side in a lane."""
    return -(-clients // (-(-clients // WIDTH) if clients >= FULL else lanes))


def cannot(name: str, model: FlatModel, shape: tuple[int, int], device: torch.device, means: Means) -> str | None:
    """Why an engine cannot train this model here; None where it can."""
    if name == "ranks":
        if device.type != "cpu":
            return f"it trains on the CPU and the device is {device.type}"
        return available() or unsendable(means.sent)
    if name == "reference":
        return None
    if means.apart:
        return "it adds updates up where they are made, and these are to be packed or compared one by one"
    found = habits(model, *shape)
    if found.draws:
        return "its model draws random numbers of its own, which it could not give to each client"
    if name == "vector" and found.mixes:
        return "it pads batches, and the model, as one with live BatchNorm does, would count the padding"
    return None


def describe_engine(device: torch.device) -> str:
    """What `auto` begins with on a device."""
    if device.type == "cuda":
        return "vector (small models) or lanes"
    return f"ranks, {cores()} workers" if available() is None else "reference"
