"""How fast a client trains here: a few timed clients, remembered for the next time."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from manyeyes.components import AllClients, CrossEntropy, EpochBatching, WeightUniformly
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population, SingleLabels
from manyeyes.core.state import RoundContext
from manyeyes.cost.formulas import ModelSize, Throughput
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import DistInfo, EngineSetup
from manyeyes.engines.gpu.compiling import cache_folder
from manyeyes.engines.malloc import retained_memory
from manyeyes.engines.select import choose_engine
from manyeyes.io.cpu_info import cpu_name
from manyeyes.io.files import write_text
from manyeyes.models.flat import FlatModel

STEPS = 3  # of the longer clients that are timed
TIMES = 3  # each; the least counts
ONE_OF_TWO_PROCESSES = DistInfo(rank=0, size=2)
TOGETHER = 32  # clients that are timed at once on a GPU, which is not busy with one


def blank_population(users: int, each: int, shape: tuple[int, int, int], classes: int) -> Population:
    """Users with so many black photos each, which take no room."""
    images = np.broadcast_to(np.zeros(shape, np.uint8), (users * each, *shape))
    names = tuple(str(number) for number in range(classes))
    return Population.from_arrays(
        images, SingleLabels(np.zeros(users * each, np.int64), names), np.repeat(range(users), each)
    )


def describe(
    model: FlatModel, personal: int, augment: Preprocess, shape: tuple[int, int, int], batch: int
) -> ModelSize:
    """What counts of a model for batches of so many."""
    size = augment.crop or shape[0]
    images = torch.zeros(batch, 3, size, size)
    return ModelSize(model.num_shared, model.num_trainable, personal, activation_bytes(model, images), images.nbytes)


def activation_bytes(model: FlatModel, images: Tensor) -> int:
    """What one forward pass keeps for the backward pass, parameters aside."""
    theta = model.read().cpu().requires_grad_()
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.module.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(theta[: model.num_trainable], theta[model.num_trainable :].detach().clone(), images)
        CrossEntropy()(outputs, torch.zeros(len(images), dtype=torch.int64)).mean()
    for known in (theta, images):
        held.pop(known.untyped_storage().data_ptr(), None)
    return sum(held.values())


def time_clients(
    algorithm: Algorithm, model: FlatModel, shape: tuple[int, int, int], augment: Preprocess, device: torch.device
) -> Throughput:
    """Three kinds of clients are timed: t = client + steps * (step + batch * image)."""
    batch, together = algorithm.batching.batch_size, TOGETHER if device.type == "cuda" else 1
    classes = model(*_parts(model), torch.zeros(1, 3, shape[0], shape[1], device=device)).shape[1]

    def timed(steps: int, examples: int) -> float:
        people = blank_population(together, examples, shape, classes)
        task = replace(
            algorithm,
            sampler=AllClients(),
            batching=EpochBatching(steps, batch),
            client_weighting=WeightUniformly(),
            example_weighting=None,
        )
        plan = plan_round(task, people, 0, 0, augment.num_uniforms)
        engine = choose_engine(
            task, EngineSetup(model, people, augment, device, cohort_size=together, dist=ONE_OF_TWO_PROCESSES)
        )
        return (
            _least(engine, model.read(), plan, RoundContext(algorithm.client_optimizer, 1e-6, None, None, None), device)
            / together
        )

    with _as_a_rank(device):
        timed(1, 1)  # which pays for what is done once
        one, some, full = timed(1, 1), timed(1 + STEPS, 1), timed(STEPS, batch)
    single = max((some - one) / STEPS, 0.0)  # step + image
    client = max(one - single, 0.0)
    image = max((full - client) / STEPS - single, 0.0) / (batch - 1) if batch > 1 else 0.0
    return Throughput(client, max(single - image, 0.0), image)


def remembered(key: str, found: Callable[[], Throughput], anew: bool = False) -> Throughput:
    """What was measured before under this name on this machine, or else is now."""
    path = cache_folder().parent / "pace.json"
    key = f"{key} {torch.__version__} {platform.node()} {cpu_name()}"
    known: dict[str, dict[str, float]] = {}
    with suppress(OSError, ValueError):  # not there, or not readable
        known = json.loads(path.read_text())
    if key in known and not anew:
        with suppress(TypeError):
            return Throughput(**known[key])
    pace = found()
    with suppress(OSError):  # a machine without a home can still plan
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known | {key: asdict(pace)}, indent=1) + "\n")
    return pace


def _least(engine: Engine, weights: Tensor, plan: RoundPlan, work: RoundContext, device: torch.device) -> float:
    """On a CPU, of its own time: others may be using the machine."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    seconds = []
    engine.train(weights, plan, work, {})
    for _ in range(TIMES):
        began = clock()
        engine.train(weights, plan, work, {})
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - began)
    return min(seconds)


def _parts(model: FlatModel) -> tuple[Tensor, Tensor]:
    weights = model.read()
    return weights[: model.num_trainable], weights[model.num_trainable :]


@contextmanager
def _as_a_rank(device: torch.device) -> Iterator[None]:
    """One on a CPU has one thread, and keeps its memory."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with retained_memory(device):
            yield
    finally:
        torch.set_num_threads(threads)
