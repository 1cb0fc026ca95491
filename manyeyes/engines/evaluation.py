"""Evaluation: a whole split through the model, into metrics that merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from manyeyes.core.population import Ints, Population
from manyeyes.core.state import ClientStates, DivergenceError
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.batch import fetch, losses
from manyeyes.engines.compiling import compiled, compiling
from manyeyes.engines.distributed import DistInfo
from manyeyes.engines.precision import arithmetic, number_type
from manyeyes.metrics import Accuracy, MultiLabelScores
from manyeyes.models.flat import FlatModel

Score = Accuracy | MultiLabelScores
GPU_EVAL_BATCH = 1024  # images of up to 64 px a batch on a GPU
MAX_SCORED_MODELS = 50  # clients' models that are scored where no tested user has one, evenly chosen
ALONE = DistInfo()


class Evaluator(Protocol):
    """Who scores models on one population."""

    @property
    def population(self) -> Population: ...

    @property
    def dist(self) -> DistInfo: ...

    def evaluate_global(self, weights: Tensor) -> Score: ...

    def evaluate_personal_layers(self, weights: Tensor, mask: Tensor, clients: ClientStates) -> Score: ...

    def evaluate_personal_models(self, models: Iterable[tuple[int, Tensor]]) -> Score: ...


class LocalEvaluator:
    """Scores of a model on one population; nothing that is evaluated changes any state.

    On a GPU the model runs in large batches of one size, compiled and captured, in the engine's precision.
    """

    def __init__(
        self,
        model: FlatModel,
        population: Population,
        augment: Preprocess,
        device: torch.device,
        precision: str = "float32",
        compile: bool = False,
        batch: int = 0,
        dist: DistInfo = ALONE,
    ) -> None:
        self.model, self.population, self.augment, self.device = model, population, augment, device
        self.precision, self.compile, self.dtype = precision, compile, number_type(precision)
        self.dist = dist
        large = GPU_EVAL_BATCH if max(population.image_shape[:2]) <= 64 else GPU_EVAL_BATCH // 4
        self.batch = batch or (large if device.type == "cuda" else GPU_EVAL_BATCH // 4)
        self._captured: CudaGraphFunction | None = None

    def evaluate_global(self, weights: Tensor) -> Score:
        """The shared model on every example."""
        return self._total(self._parts(weights, self.dist.shard(np.arange(len(self.population)))))

    def evaluate_personal_layers(self, weights: Tensor, mask: Tensor, clients: ClientStates) -> Score:
        """Every user on its own examples, with its own layers or, where it has none yet, with the shared ones.

        Where no user here has any, the models of some clients are scored on all examples, and the scores are added up.
        """
        if any(key in clients for key in self.population.user_ids.tolist()):
            keys = self.dist.shard(self.population.user_ids).tolist()
            return self.evaluate_personal_models(
                (key, with_personal_weights(weights, mask, clients.get(key))) for key in keys
            )
        every = np.array(sorted(clients))
        some = (
            every[np.unique(np.linspace(0, len(every) - 1, MAX_SCORED_MODELS).round().astype(int))]
            if len(every)
            else every
        )
        keys = self.dist.shard(some).tolist()
        models = (with_personal_weights(weights, mask, clients.get(key)) for key in keys)
        everything = np.arange(len(self.population))
        return self._total(part for model in models for part in self._parts(model, everything))

    def evaluate_personal_models(self, models: Iterable[tuple[int, Tensor]]) -> Score:
        """Users by key, each with a model of its own, on their own examples; every process brings others."""
        place = {key: user for user, key in enumerate(self.population.user_ids.tolist())}
        return self._total(
            part for key, model in models for part in self._parts(model, self.population.examples(place[key]))
        )

    def _total(self, parts: Iterable[Score]) -> Score:
        empty: Any = (MultiLabelScores if self.population.labels.multi else Accuracy).empty(
            len(self.population.classes)
        )
        return cast(Score, sum(self.dist.all_gather(sum(parts, empty)), empty))

    @torch.no_grad()
    def _parts(self, weights: Tensor, examples: Ints) -> Iterator[Score]:
        """The score of one batch after another, each read while the next is computed."""
        self.model.module.eval()
        before: tuple[Tensor, Tensor, Ints] | None = None
        for first in range(0, len(examples), self.batch):
            chosen = examples[first : first + self.batch]
            with arithmetic(self.precision):
                outputs, targets = self._outputs(weights, chosen)
            if before is not None:
                yield self._score(*before)
            before = outputs, targets, chosen
        if before is not None:
            yield self._score(*before)

    def _score(self, outputs: Tensor, targets: Tensor, examples: Ints) -> Score:
        if not bool(torch.isfinite(outputs).all()):
            raise DivergenceError("the model's outputs are no longer finite")
        users = self.population.user_ids[self.population.owners(examples)]
        if self.population.labels.multi:
            return MultiLabelScores.from_scores(outputs, targets, users)
        found = outputs.argmax(1)
        return Accuracy.from_predictions(found, targets, outputs.shape[1], losses(outputs, targets), users)

    def _outputs(self, weights: Tensor, examples: Ints) -> tuple[Tensor, Tensor]:
        images, targets = fetch(self.population, examples, self.device)
        if self.device.type != "cuda" or 2 * len(examples) <= self.batch:  # a graph would compute mostly padding
            return self._forward(weights, images), targets
        if self._captured is None:
            forward = compiled(self._forward) if self.compile else self._forward
            full = images.new_zeros(self.batch, *images.shape[1:])
            with compiling("evaluation" if self.compile else ""):
                self._captured = CudaGraphFunction(forward, weights, full)
        return self._captured(weights, images)[: len(examples)].clone(), targets

    def _forward(self, weights: Tensor, images: Tensor) -> Tensor:
        theta, statistics = weights[: self.model.num_trainable], weights[self.model.num_trainable :]
        seen = self.model.to_memory_format(self.augment.evaluate(images)).to(self.dtype)
        return self.model(theta.to(self.dtype), statistics, seen).float()


class CudaGraphFunction:
    """A function of two tensors as a CUDA graph; fewer images than the first call had are padded by what was there."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], weights: Tensor, images: Tensor) -> None:
        self._weights, self._images = weights.clone(), images.clone()
        stream = torch.cuda.Stream(weights.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(self._weights, self._images)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._outputs = function(self._weights, self._images)

    def __call__(self, weights: Tensor, images: Tensor) -> Tensor:
        self._weights.copy_(weights)
        self._images[: len(images)].copy_(images)
        self._graph.replay()
        return self._outputs


def with_personal_weights(weights: Tensor, mask: Tensor, kept: Mapping[str, Tensor] | None) -> Tensor:
    """A client's model: the shared numbers, and its own where it has kept any."""
    return weights.masked_scatter(mask, kept["personal"]) if kept else weights
