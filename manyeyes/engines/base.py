"""What all engines share: options, setup, base class, and how a process computes and merges its part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from manyeyes.core.algorithm import Algorithm, PersonalLayers
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Ints, Population
from manyeyes.core.registry import option, settings_class
from manyeyes.core.state import ClientState, ClientStates, CohortResult, RoundContext, in_plan_order
from manyeyes.data.preprocess import FeatureDecoder, Preprocess
from manyeyes.engines.distributed.data_parallel import ClientGroup
from manyeyes.engines.distributed.process_group import peer_errors
from manyeyes.engines.images import ImagePrefetcher
from manyeyes.io.portable import c_library
from manyeyes.models.flat import FlatModel
from manyeyes.models.inspection import ModuleTraits, probe

T = TypeVar("T")
PRECISIONS = ("auto", "float32", "tf32", "bf16")
MAX_SHORT_CLIENTS, MAX_SHORT_PRODUCTS = 16, 10**7  # clients, and trainable values times examples, of a short round
LIBC = c_library()
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # options of glibc's mallopt: what is returned at once, and how much is mapped
DEFAULTS = {TRIM_THRESHOLD: 2**26, MMAP_MAX: 2**16}  # the values that glibc arrives at by itself


@settings_class("engine")
class EngineOptions:
    """Which engine trains, and what it may use."""

    engine: str = option("auto", "auto, reference, multiprocess, vmap, cuda_graphs, or package.module:Name")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    precision: str = option("auto", "float32, tf32, bf16, or auto: tf32 on a GPU, else float32")
    compile: bool = option(True, "compile training steps on a GPU")
    workers: int = option(0, "worker processes of engine=multiprocess; 0: one per core", minimum=0, maximum=1024)
    num_streams: int = option(
        0, "CUDA streams of engine=vmap and engine=cuda_graphs; 0: the best number", minimum=0, maximum=1024
    )
    threads: int = option(0, "CPU threads of PyTorch; 0: PyTorch's default", minimum=0, maximum=1024)
    image_storage: str = option("auto", "gpu, cpu, or auto: on the GPU where they fit", choices=("auto", "gpu", "cpu"))
    features: str = option(
        "auto",
        "train on cached outputs of the layers that do not change: on, off, or auto: where that is exact and saves work",
        choices=("auto", "on", "off"),
    )
    prefetch_mib: int = option(1024, "MiB of the next round's images that are read ahead from disk", minimum=0)


@dataclass(frozen=True)
class DistInfo:
    """The rank of this process, and the number of processes of the training."""

    rank: int = 0
    size: int = 1  # number of processes

    def all_gather(self, local: T) -> list[T]:
        """Return the objects of all processes, in the order of ranks."""
        if self.size == 1:
            return [local]
        objects: list[Any] = [None] * self.size
        with peer_errors():
            torch.distributed.all_gather_object(objects, local)
        return objects

    def shard(self, items: Ints) -> Ints:
        """Return this process's part of the items."""
        return np.array_split(items, self.size)[self.rank]


SINGLE_PROCESS = DistInfo()


def dist_info() -> DistInfo:
    """Return the rank and size that `torchrun` sets in the environment."""
    return DistInfo(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


@dataclass(frozen=True, eq=False)
class EngineSetup:
    """What an engine trains, on which device, and with which options."""

    model: FlatModel
    population: Population  # that is trained on
    preprocess: Preprocess | FeatureDecoder
    device: torch.device
    options: EngineOptions = field(default_factory=EngineOptions)
    cohort_size: int = 8  # clients that a round is expected to have
    dist: DistInfo = SINGLE_PROCESS
    prefetcher: ImagePrefetcher | None = None  # the population's images, where they are read ahead
    known_traits: ModuleTraits | None = None  # of the model, where it was probed already

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that the model sees."""
        return self.preprocess.shape(*self.population.image_shape[:2])

    @cached_property
    def traits(self) -> ModuleTraits:
        return self.known_traits or probe(self.model, *self.image_size, self.population.image_shape[2])

    @property
    def precision(self) -> str:
        return choose_precision(self.options.precision, self.device)

    @property
    def has_short_rounds(self) -> bool:
        """Whether a round trains a small head on features of a few clients, for which a second core does not pay."""
        num_examples = self.cohort_size * float(self.population.num_examples.mean())
        is_small = num_examples * self.model.num_trainable <= MAX_SHORT_PRODUCTS
        return isinstance(self.preprocess, FeatureDecoder) and self.cohort_size <= MAX_SHORT_CLIENTS and is_small


class EngineBase:
    """What `manyeyes run` expects of an engine. A subclass adds `train`.

    Register a subclass with `@register("engine", NAME)`, or choose it by import path.
    """

    name: str = "custom"
    precision: str = "float32"  # that evaluation uses too
    compiles: bool = False  # whether evaluation is compiled too
    splits_clients: bool = False  # whether it has `in_group`
    plans_ahead: bool = False  # whether it calls `on_device_busy`, in which the next round is planned
    on_device_busy: Callable[[], None] = staticmethod(lambda: None)  # called when the host waits for the device

    def __init__(self, setup: EngineSetup) -> None:
        self.num_trainable, self.num_augment_uniforms = setup.model.num_trainable, setup.preprocess.num_uniforms
        self._model = setup.model
        self._masks: dict[PersonalLayers, Tensor] = {}

    @classmethod
    def incompatibility(cls, algorithm: Algorithm, setup: EngineSetup) -> str | None:
        """Return what of this training the engine does not support; None where it supports all of it."""
        return None

    @classmethod
    def is_recommended(cls, setup: EngineSetup) -> bool:
        """Return whether `engine=auto` should take the engine where it is compatible."""
        return True

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        """Return where the weights belong to personal layers [W]; the same tensor for the same layers."""
        if personal_layers not in self._masks:
            mask = self._model.mask(personal_layers.parameter_names(self._model.structure).__contains__)
            if not mask.any():
                raise ValueError(f"no layer of the model matches personal_layers={personal_layers}: name others.")
            self._masks[personal_layers] = mask
        return self._masks[personal_layers]

    def prefetch(self, plan: RoundPlan) -> None:
        """Prepare what can be prepared for a coming round."""

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Train the clients of a round, and return the sum of their updates."""
        raise NotImplementedError(f"{type(self).__name__} has no train: add one that returns a CohortResult.")

    def in_group(self, group: ClientGroup) -> EngineBase:
        """Return an engine that trains each client together with the other processes of a group."""
        raise NotImplementedError(f"{type(self).__name__} has no in_group: set splits_clients to False.")

    def close(self) -> None:
        """Release processes and device memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def choose_precision(name: str, device: torch.device) -> str:
    """Return the precision by name; `auto` is tf32 on a GPU and float32 elsewhere."""
    if name not in PRECISIONS:
        raise ValueError(f"engine.precision is {name!r}: choose {', '.join(PRECISIONS)}.")
    if name == "auto":
        return "tf32" if device.type == "cuda" else "float32"
    if name == "tf32" and device.type != "cuda":
        raise ValueError(f"engine.precision=tf32 needs a GPU and the device is {device.type}: choose float32 or bf16.")
    return name


def compute_dtype(precision: str) -> torch.dtype:
    """Return the type that the model computes in; weights, updates and their sums are always float32."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


@contextmanager
def limited_threads(num_threads: int) -> Iterator[None]:
    """Use at most this many CPU threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, num_threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic_kernels(precision: str) -> Iterator[None]:
    """Use kernels of a precision that give the same bits every time."""
    is_tf32, was_tf32 = precision == "tf32", torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=is_tf32):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was_tf32


def merge_results(
    weights: Tensor,
    plan: RoundPlan,
    partial_results: Iterable[tuple[list[int], CohortResult]],
    keep_updates: bool = False,
) -> CohortResult:
    """Return the results of parts of a plan as one, in the order of the plan; a client of no part is not accepted.

    Each part is the indices of its clients in the plan, and their result.
    """
    num_clients = len(plan.clients)
    update_W, uploads_P = torch.zeros_like(weights), None
    updates_KW = weights.new_zeros(num_clients, len(weights)) if keep_updates else None
    accepted_K, (loss_K, norm_K) = np.zeros(num_clients, bool), np.zeros((2, num_clients))
    states: dict[int, ClientState] = {}
    for indices, result in partial_results:
        update_W += result.update_W
        if result.uploads_P is not None:
            uploads_P = result.uploads_P.clone() if uploads_P is None else uploads_P + result.uploads_P
        if updates_KW is not None and result.updates_KW is not None:
            updates_KW[indices] = result.updates_KW
        accepted_K[indices], loss_K[indices], norm_K[indices] = result.accepted_K, result.loss_K, result.norm_K
        states |= result.client_states
    client_states = in_plan_order(plan, states)
    return CohortResult(update_W, uploads_P, accepted_K, loss_K, norm_K, client_states, updates_KW)


def retain_freed_memory() -> None:
    """Let this process retain the memory it frees: requesting it again took more than half of a ResNet18's time."""
    _set_options({TRIM_THRESHOLD: -1, MMAP_MAX: 0})


@contextmanager
def retained_memory(device: torch.device) -> Iterator[None]:
    """Retain freed memory within the block if the process trains on a CPU; it is returned at the end."""
    if device.type != "cpu":
        yield
        return
    retain_freed_memory()
    try:
        yield
    finally:
        _set_options(DEFAULTS)
        with suppress(AttributeError):
            LIBC.malloc_trim(0)


def _set_options(options: dict[int, int]) -> None:
    with suppress(AttributeError):  # other C libraries have no such options
        for option, value in options.items():
            LIBC.mallopt(option, value)
