"""The GPU engines: clients train in CUDA streams that run at the same time, and side by side within a stream.

`cuda_graphs` is several streams of one client each, for models that fill a good part of a GPU; `vmap` is two streams of
many clients through `torch.func.vmap`, for small models. A round is planned by the host, uploaded once, and then only
launched: compiled steps, captured as CUDA graphs, find their rows through an index on the device. On a CPU the same
code runs without streams and graphs.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from manyeyes.components.client_optimizers import SGD, Adam
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import RoundPlan
from manyeyes.core.registry import register
from manyeyes.core.state import ClientStates, CohortResult, RoundContext
from manyeyes.engines.base import EngineBase, EngineSetup
from manyeyes.engines.gpu.trainer import StreamTrainer, capture_key
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models.fast.cuda import optimize_for_cuda
from manyeyes.models.flat import FlatModel
from manyeyes.models.inspection import preserved_generators

MAX_VMAP_WIDTH = 64  # clients side by side
VMAP_STREAMS = 2  # one works while the other starts a kernel or ends one
CLIENTS_THAT_FILL_A_GPU = 32  # clients side by side that are not divided among streams
STREAM_COUNTS = range(8, 17)  # of `cuda_graphs`: fewer leave an H200 idle, more bring nothing
VMAP_MAX_PARAMETERS, VMAP_MAX_PIXELS = 2_000_000, 64  # per model and per side, of what `auto` trains side by side


class GpuEngine(EngineBase):
    """Streams of at most `width` clients side by side; agrees with the reference up to rounding."""

    plans_ahead = True

    def __init__(self, setup: EngineSetup, num_streams: int, width: int) -> None:
        super().__init__(setup)
        self.setup, self.num_streams, self.width = setup, num_streams, width
        self.precision, self.compiles = setup.precision, setup.options.compile and setup.device.type == "cuda"
        self.exact_batches = setup.traits.mixes_batch  # without padding
        assert not (self.exact_batches and width > 1), "examples of clients side by side would share their statistics"
        self.reference = ReferenceEngine(replace(setup, options=replace(setup.options, precision="float32")))
        self.plain_model = FlatModel(copy.deepcopy(setup.model.module))
        self.model = _model_on_device(setup, width > 1)
        self.trainers: list[StreamTrainer] = []  # the first is that of the run's rounds, which are prefetched

    @classmethod
    def incompatibility(cls, algorithm: Algorithm, setup: EngineSetup) -> str | None:
        if algorithm.compressor is not None:
            return "compression"
        if algorithm.aggregator is not None:
            return f"aggregator={type(algorithm.aggregator).__name__}, which compares the clients' updates"
        if setup.traits.uses_rng:
            return "a model that draws random numbers, which cannot be drawn for each client"
        return _incompatible_loss(algorithm, setup)

    def prefetch(self, plan: RoundPlan) -> None:
        if self.trainers and plan.clients:
            self.trainers[0].prefetch(plan)

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        key = capture_key(plan, context)
        trainer = next((trainer for trainer in self.trainers if trainer.key == key), None)
        if trainer is None:
            trainer = StreamTrainer(self, weights, plan, context)
            self.trainers.append(trainer)
        return trainer.train(weights, plan, context, client_states)


@register("engine", "vmap")
class VmapEngine(GpuEngine):
    """Two streams of many clients side by side, for small models."""

    name = "vmap"

    def __init__(self, setup: EngineSetup) -> None:
        num_streams = setup.options.num_streams or min(VMAP_STREAMS, setup.cohort_size)
        super().__init__(setup, num_streams, width_for(setup.cohort_size, num_streams))

    @classmethod
    def incompatibility(cls, algorithm: Algorithm, setup: EngineSetup) -> str | None:
        if reason := super().incompatibility(algorithm, setup):
            return reason
        if setup.traits.mixes_batch:
            return "a model that mixes the examples of a batch, because it pads batches"
        if algorithm.privacy is not None and type(algorithm.client_optimizer) not in (SGD, Adam):
            name = type(algorithm.client_optimizer).__name__
            return f"privacy with client_optimizer={name}, which may mix the clients that are stepped at once"
        return _incompatible_model(setup)

    @classmethod
    def is_recommended(cls, setup: EngineSetup) -> bool:
        return setup.model.num_trainable <= VMAP_MAX_PARAMETERS and max(setup.image_size) <= VMAP_MAX_PIXELS


@register("engine", "cuda_graphs")
class CudaGraphsEngine(GpuEngine):
    """Several streams of one client each."""

    name = "cuda_graphs"

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup, setup.options.num_streams or streams_for(setup.cohort_size), width=1)


def streams_for(num_clients: int) -> int:
    """Return how many streams clients of one size keep busy: a pure function, so that a run repeats bit for bit."""
    if num_clients in range(1, STREAM_COUNTS[-1] + 1):
        return num_clients
    return min(STREAM_COUNTS, key=lambda streams: -(-num_clients // streams) * streams)


def width_for(num_clients: int, num_streams: int) -> int:
    """Return how many clients of one size run side by side in a stream."""
    fills_gpu = num_clients >= CLIENTS_THAT_FILL_A_GPU
    return -(-num_clients // (-(-num_clients // MAX_VMAP_WIDTH) if fills_gpu else num_streams))


def _incompatible_loss(algorithm: Algorithm, setup: EngineSetup) -> str | None:
    """Return why the loss cannot be vectorized and captured; None where it can."""
    if algorithm.loss is None:
        return None
    num_classes, is_multi = len(setup.population.classes), setup.population.labels.multi
    outputs = torch.zeros(2, 1, num_classes, device=setup.device)
    targets = torch.zeros_like(outputs) if is_multi else torch.zeros(2, 1, dtype=torch.int64, device=setup.device)
    try:
        vmap(algorithm.loss)(outputs, targets)
    except Exception as error:  # a loss of a user's own may raise anything
        return f"loss={type(algorithm.loss).__name__}, which torch.func.vmap cannot vectorize ({_first_line(error)})"
    return None


def _incompatible_model(setup: EngineSetup) -> str | None:
    """Return why outputs or gradients of the model cannot be vectorized on the device; None where they can."""
    model = _model_on_device(setup, vmapped=True)
    pixels = torch.zeros(2, *setup.population.image_shape, dtype=torch.uint8, device=setup.device)
    images = model.to_memory_format(setup.preprocess.evaluate(pixels))
    theta_2P, statistics_2S = (
        part.expand(2, -1).clone() for part in setup.model.read().tensor_split([model.num_trainable])
    )
    model.module.train()
    try:
        with preserved_generators(setup.device), sdpa_kernel(SDPBackend.MATH):
            outputs = vmap(model)(theta_2P.requires_grad_(), statistics_2S, torch.stack([images, images]))
            torch.autograd.grad(outputs.sum(), theta_2P)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # PyTorch has no rule for an operator, or a module of a user's own raises anything
        return f"a model that torch.func.vmap cannot vectorize ({_first_line(error)})"
    return None


def _model_on_device(setup: EngineSetup, vmapped: bool) -> FlatModel:
    """Return a copy of the model, with layers that are fast on the device."""
    if setup.device.type == "cuda":
        return FlatModel(optimize_for_cuda(setup.model.module, vmapped))
    return FlatModel(copy.deepcopy(setup.model.module))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
