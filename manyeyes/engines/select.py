"""Which engine, on which device."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from manyeyes.core.population import Population
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.gpu.engine import GpuEngine
from manyeyes.engines.multiprocess.engine import MultiprocessEngine
from manyeyes.engines.multiprocess.worker import available, cores, pickle_error
from manyeyes.engines.precision import choose_precision
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.fast.cpu import optimize_for_cpu
from manyeyes.models.flat import FlatModel
from manyeyes.models.traits import probe

ENGINES = ("reference", "multiprocess", "vmap", "cuda_graphs")
AUTO_ORDER: dict[str, tuple[str, ...]] = {
    "cuda": ("cuda_graphs", "reference"),
    "cpu": ("multiprocess", "reference"),
}  # `auto`, in order
MAX_VMAP_WIDTH = 64  # clients side by side, at most
VMAP_STREAMS = 2  # lanes of `vector`: one works while the other starts a kernel or ends one
CLIENTS_THAT_FILL_A_GPU = 32  # clients side by side that fill a GPU: so many are not divided among lanes
STREAM_COUNTS = range(8, 17)  # of `lanes`: fewer leave an H200 idle, more bring nothing
SMALL, SIDE = 2_000_000, 64  # trained parameters and pixels of models whose clients run side by side on a GPU


@dataclass(frozen=True)
class EngineOptions:
    """What an engine may use."""

    precision: str = "auto"
    compile: bool = True  # on a GPU; Inductor's CPU code is slower than PyTorch's own, and has been wrong
    workers: int = 0  # processes of `ranks`; 0: one a core
    num_streams: int = 0  # lanes of `lanes`; 0: the number that is best here
    needs_client_updates: bool = (
        False  # whether the algorithm looks at each client's update: packs it, or compares it with others
    )
    shipped_components: tuple[object, ...] = ()  # the parts of the algorithm that workers are sent
    num_processes: int = 1  # of torchrun, that train together

    def __post_init__(self) -> None:
        for name in ("workers", "num_streams"):
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
    augment: Preprocess,
    device: torch.device,
    options: EngineOptions,
    num_clients: int = STREAM_COUNTS[0],
) -> ReferenceEngine | MultiprocessEngine | GpuEngine:
    """The engine of that name, or with `auto` the fastest that can do the work, ready to train on `population`.

    `clients` is how many of them a round is expected to have.
    """
    precision = choose_precision(options.precision, device)
    full = "float32" if precision == "tf32" else precision  # of those that never take a GPU's shortcut
    shape = augment.shape(*population.image_shape[:2])
    if name == "auto" and device.type == "cpu" and options.num_processes > 1:  # each is what a worker of `ranks` is
        return ReferenceEngine(FlatModel(optimize_for_cpu(model.module)), population, augment, device, full)
    if name == "auto":
        best = AUTO_ORDER[device.type]
        if device.type == "cuda" and model.num_trainable <= SMALL and max(shape) <= SIDE:
            best = ("vmap", *best)
        name = next(
            one for one in best if one == best[-1] or unsupported_reason(one, model, shape, device, options) is None
        )
    elif name not in ENGINES:
        raise ValueError(f"engine {name!r} is unknown: choose auto or {', '.join(ENGINES)}")
    if reason := unsupported_reason(name, model, shape, device, options):
        raise ValueError(f"engine {name} cannot do this: {reason}; choose another, or auto")
    if name == "reference":
        return ReferenceEngine(model, population, augment, device, full)
    if name == "multiprocess":
        return MultiprocessEngine(model, population, augment, device, options.workers or None, full)
    lanes, width = options.num_streams or streams_for(num_clients), 1
    if name == "vmap":
        lanes = options.num_streams or min(VMAP_STREAMS, num_clients)
        width = width_for(num_clients, lanes)
    compile = options.compile and device.type == "cuda"
    return GpuEngine(
        model, population, augment, device, num_streams=lanes, width=width, precision=precision, compile=compile
    )


def streams_for(clients: int) -> int:
    """How many lanes clients of one size keep busy to the end: a pure function, for a run to repeat bit for bit."""
    return (
        clients
        if clients in range(1, STREAM_COUNTS[-1] + 1)
        else min(STREAM_COUNTS, key=lambda lanes: -(-clients // lanes) * lanes)
    )


def width_for(clients: int, lanes: int) -> int:
    """How many clients of one size run side by side in a lane."""
    return -(-clients // (-(-clients // MAX_VMAP_WIDTH) if clients >= CLIENTS_THAT_FILL_A_GPU else lanes))


def unsupported_reason(
    name: str, model: FlatModel, shape: tuple[int, int], device: torch.device, means: EngineOptions
) -> str | None:
    """Why an engine cannot train this model here; None where it can."""
    if name == "multiprocess":
        if device.type != "cpu":
            return f"it trains on the CPU and the device is {device.type}"
        return available() or pickle_error(means.shipped_components)
    if name == "reference":
        return None
    if means.needs_client_updates:
        return "it adds updates up where they are made, and these are to be packed or compared one by one"
    found = probe(model, *shape)
    if found.uses_rng:
        return "its model draws random numbers of its own, which it could not give to each client"
    if name == "vmap" and found.mixes_batch:
        return "it pads batches, and the model, as one with live BatchNorm does, would count the padding"
    return None


def describe_engine(device: torch.device) -> str:
    """What `auto` begins with on a device."""
    if device.type == "cuda":
        return "vector (small models) or lanes"
    return f"ranks, {cores()} workers" if available() is None else "reference"
