"""Which engine trains, and on which device."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

import manyeyes.engines.gpu.engine
import manyeyes.engines.multiprocess.engine
import manyeyes.engines.reference  # noqa: F401  (engines register themselves)
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import RoundPlan
from manyeyes.core.registry import lookup, names, suggestion
from manyeyes.engines.base import EngineBase, EngineSetup
from manyeyes.engines.distributed.engine import DistributedEngine
from manyeyes.engines.images import ImagePrefetcher, PlanPrefetcher, reads_from_disk
from manyeyes.engines.multiprocess.worker import cores, unsupported_machine
from manyeyes.models.fast.cpu import optimize_for_cpu
from manyeyes.models.flat import FlatModel

AUTO_ORDER: dict[str, tuple[str, ...]] = {  # of each device: the first that is recommended and compatible is taken
    "cuda": ("vmap", "cuda_graphs", "reference"),
    "cpu": ("multiprocess", "reference"),
}
MIB = 2**20
CUDA_QUEUES = "32"  # or streams would wait for each other in 8


def choose_device(name: str) -> torch.device:
    """Return a device by name; `auto` is the GPU where there is one."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", CUDA_QUEUES)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"engine.device is {name!r}: choose auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("engine.device=cuda needs a GPU that PyTorch can use, and there is none: choose cpu.")
    if device == torch.device("cuda") and "LOCAL_RANK" in os.environ:  # each process of torchrun has its own
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def make_engine(
    algorithm: Algorithm, setup: EngineSetup, plan: Callable[[int], RoundPlan], rounds: int
) -> tuple[EngineBase, ImagePrefetcher | PlanPrefetcher | None]:
    """Return the engine of a run, and what plans its rounds ahead where that saves time.

    Of several processes it is the chosen engine of each, together.
    """
    prefetcher, max_bytes = None, setup.options.prefetch_mib * MIB
    if max_bytes and reads_from_disk(setup.population.images):
        prefetcher = ImagePrefetcher(setup.population, plan, rounds, max_bytes)
        setup = replace(setup, population=replace(setup.population, images=prefetcher), prefetcher=prefetcher)
    engine = choose_engine(algorithm, setup)
    if setup.dist.size > 1:
        engine = DistributedEngine(engine, setup)
    if algorithm.personal_layers is not None:
        engine.personal_mask(algorithm.personal_layers)  # refuses patterns that match no layer before a folder exists
    if prefetcher is not None or not engine.plans_ahead:
        return engine, prefetcher
    planner = PlanPrefetcher(plan, rounds, engine.prefetch)
    engine.on_device_busy = planner.prepare
    return engine, planner


def choose_engine(algorithm: Algorithm, setup: EngineSetup) -> EngineBase:
    """Return the engine that `setup.options` name, or with `auto` the fastest that can train the algorithm."""
    name = setup.options.engine
    if name == "auto":
        candidates = [_engine_class(candidate) for candidate in AUTO_ORDER.get(setup.device.type, ("reference",))]
        compatible = (c for c in candidates if c.is_recommended(setup) and c.incompatibility(algorithm, setup) is None)
        if setup.dist.size > 1 and setup.device.type == "cpu":  # each process is what a worker of `multiprocess` is
            setup = replace(setup, model=FlatModel(optimize_for_cpu(setup.model.module)))
        return next(compatible, candidates[-1])(setup)
    engine_class = _engine_class(name)
    if reason := engine_class.incompatibility(algorithm, setup):
        compatible_names = [e for e in names("engine") if _engine_class(e).incompatibility(algorithm, setup) is None]
        *others, last = ["auto", *compatible_names]
        raise ValueError(f"engine={name} does not support {reason}: use engine={', '.join(others)} or {last}.")
    return engine_class(setup)


def _engine_class(name: str) -> type[EngineBase]:
    if ":" not in name and name not in names("engine"):
        known = ("auto", *names("engine"))
        fix = f"choose {', '.join(known)}, or package.module:Name"
        raise ValueError(f"Unknown engine {name!r}{suggestion(name, known)}: {fix}.")
    engine_class = lookup("engine", name).factory
    if not hasattr(engine_class, "incompatibility"):
        raise ValueError(f"engine={name} is not an engine: derive it from manyeyes.engines.base.EngineBase.")
    return cast(type[EngineBase], engine_class)


def describe_engine(device: torch.device) -> str:
    """Return what `auto` takes first on a device, for a reader."""
    if device.type == "cuda":
        return "vmap (small models) or cuda_graphs"
    return f"multiprocess, {cores()} workers" if unsupported_machine(device) is None else "reference"
