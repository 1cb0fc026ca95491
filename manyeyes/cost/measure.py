"""How fast a client trains on this machine: a few timed clients, cached on disk."""

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.components import AllClients, CrossEntropy, EpochBatching, WeightUniformly
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Ints, Population, SingleLabels
from manyeyes.core.state import RoundContext
from manyeyes.cost.formulas import ModelSize, Throughput
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import DistInfo, EngineSetup, retained_memory
from manyeyes.engines.gpu.compiling import cache_folder
from manyeyes.engines.select import choose_engine
from manyeyes.io.cpu_info import cpu_name
from manyeyes.io.files import write_text
from manyeyes.models.flat import FlatModel

NUM_STEPS = 3  # more steps of the longer clients that are timed
NUM_REPEATS = 3  # of each timing; the shortest counts
RANK_OF_TWO = DistInfo(rank=0, size=2)  # an engine without worker processes
CLIENTS_ON_GPU = 32  # that are timed together, since one does not keep a GPU busy


def blank_population(
    num_examples_U: Ints, image_shape: tuple[int, int, int], num_classes: int, split: NDArray[np.str_] | None = None
) -> Population:
    """Return users with black images, which take no memory."""
    total = int(num_examples_U.sum())
    images = np.broadcast_to(np.zeros(image_shape, np.uint8), (total, *image_shape))
    labels = SingleLabels(np.zeros(total, np.int64), tuple(str(label) for label in range(num_classes)))
    owners = np.repeat(np.arange(len(num_examples_U)), num_examples_U)
    return Population.from_arrays(images, labels, owners, **({} if split is None else {"split": split}))


def model_size(
    model: FlatModel, num_personal: int, batch_size: int, image_size: tuple[int, int], channels: int = 3
) -> ModelSize:
    """Return the sizes of a model that trains on batches of these images."""
    images = torch.zeros(batch_size, channels, *image_size)
    return ModelSize(
        model.num_shared, model.num_trainable, num_personal, activation_bytes(model, images), images.nbytes
    )


def activation_bytes(model: FlatModel, images: Tensor) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, without the parameters and the images."""
    weights = model.read().cpu().requires_grad_()
    theta, statistics = weights[: model.num_trainable], weights[model.num_trainable :].detach().clone()
    bytes_by_address: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        bytes_by_address[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.module.train()
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        CrossEntropy()(model(theta, statistics, images), torch.zeros(len(images), dtype=torch.int64)).mean()
    for tensor in (weights, images):
        bytes_by_address.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(bytes_by_address.values())


def measure_throughput(
    algorithm: Algorithm, model: FlatModel, population: Population, preprocess: Preprocess, device: torch.device
) -> Throughput:
    """Time three kinds of clients, and solve seconds = client + steps * (step + batch size * image)."""
    batch_size, num_clients = algorithm.batching.batch_size, CLIENTS_ON_GPU if device.type == "cuda" else 1
    uniform = replace(algorithm, sampler=AllClients(), client_weighting=WeightUniformly(), example_weighting=None)

    def client_seconds(num_steps: int, num_examples: int) -> float:
        clients = blank_population(np.full(num_clients, num_examples), population.image_shape, len(population.classes))
        timed = replace(uniform, batching=EpochBatching(num_steps, batch_size))
        plan = plan_round(timed, clients, 0, 0, preprocess.num_uniforms)
        setup = EngineSetup(model, clients, preprocess, device, cohort_size=num_clients, dist=RANK_OF_TWO)
        context = RoundContext(algorithm.client_optimizer, 1e-6, None, None, None)
        with choose_engine(timed, setup) as engine:
            return _round_seconds(engine, model.read(), plan, context, device.type == "cuda") / num_clients

    with _as_rank(device):
        client_seconds(1, 1)  # compilation and first allocations
        one_step, more_steps = client_seconds(1, 1), client_seconds(1 + NUM_STEPS, 1)
        full_batches = client_seconds(NUM_STEPS, batch_size)
    step_and_image = max((more_steps - one_step) / NUM_STEPS, 0.0)
    client = max(one_step - step_and_image, 0.0)
    other_images = max((full_batches - client) / NUM_STEPS - step_and_image, 0.0)
    image = other_images / (batch_size - 1) if batch_size > 1 else 0.0
    return Throughput(client, max(step_and_image - image, 0.0), image)


def cached_throughput(key: str, measure: Callable[[], Throughput], refresh: bool = False) -> Throughput:
    """Return what was measured under this key on this machine; measure where nothing was, or to refresh it."""
    path = cache_folder().parent / "throughput.json"
    key = f"{key} {torch.__version__} {platform.node()} {cpu_name()}"
    cached: dict[str, dict[str, float]] = {}
    with suppress(OSError, ValueError):  # missing or unreadable
        cached = json.loads(path.read_text())
    if key in cached and not refresh:
        with suppress(TypeError):
            return Throughput(**cached[key])
    throughput = measure()
    with suppress(OSError):  # a machine without a home folder has no cache
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(cached | {key: asdict(throughput)}, indent=1) + "\n")
    return throughput


def _round_seconds(engine: Engine, weights: Tensor, plan: RoundPlan, context: RoundContext, is_on_gpu: bool) -> float:
    """Return the shortest time of a round; on a CPU that of this process, since others may use the machine."""
    clock = time.perf_counter if is_on_gpu else time.process_time
    seconds = []
    engine.train(weights, plan, context, {})
    for _ in range(NUM_REPEATS):
        start = clock()
        engine.train(weights, plan, context, {})
        if is_on_gpu:
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    return min(seconds)


@contextmanager
def _as_rank(device: torch.device) -> Iterator[None]:
    """Give this process what a rank on a CPU has: one thread, and memory that it retains."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cpu" else num_threads)
    try:
        with retained_memory(device):
            yield
    finally:
        torch.set_num_threads(num_threads)
