"""Evaluation: a split through the model, into metrics that merge over batches, users and processes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from manyeyes.core.population import Ints, Population, fetch
from manyeyes.core.state import PERSONAL_WEIGHTS, ClientStates, DivergenceError
from manyeyes.data.preprocess import FeatureDecoder, Preprocess
from manyeyes.engines.base import SINGLE_PROCESS, DistInfo, compute_dtype, deterministic_kernels
from manyeyes.engines.gpu.compiling import capture_forward
from manyeyes.metrics import Accuracy, MultiLabelScores, Score
from manyeyes.metrics.arrays import as_array
from manyeyes.metrics.base import NO_METRICS, MetricSet
from manyeyes.models.flat import FlatModel

GPU_EVAL_BATCH = 1024  # images of at most SMALL_IMAGE_PIXELS, on a GPU; a quarter of it otherwise
SMALL_IMAGE_PIXELS = 64  # per side
MAX_SCORED_MODELS = 50  # clients' models, evenly chosen, that are scored where no evaluated user has one


class Evaluator(Protocol):
    """Scores models on one population."""

    population: Population
    dist: DistInfo

    def evaluate_global(self, weights: Tensor) -> Score:
        """Score the shared model on every example."""

    def evaluate_personal_layers(self, weights: Tensor, mask: Tensor, clients: ClientStates) -> Score:
        """Score every user on its own examples, with its personal layers or, where it has none yet, the shared ones."""

    def evaluate_personal_models(self, models: Iterable[tuple[int, Tensor]]) -> Score:
        """Score users' own models, by client id, on their own examples."""

    def outputs(self, weights: Tensor, examples: Ints) -> Tensor | None:
        """Return the outputs of the shared model [N, C]; None where the examples are on other machines."""


@dataclass(eq=False)
class LocalEvaluator:
    """Scores models in this process, and merges the scores of all processes; it changes no state.

    On a GPU the model runs in large batches of one size, compiled and captured, in the engine's precision. `metrics`
    are scored in addition; their results are part of the score's.
    """

    model: FlatModel
    population: Population
    preprocess: Preprocess | FeatureDecoder
    device: torch.device
    precision: str = "float32"
    compile: bool = False
    batch_size: int = 0  # 0: by the size of the images
    dist: DistInfo = SINGLE_PROCESS
    metrics: MetricSet = NO_METRICS
    inputs: Population | None = None  # the same examples with images as the model takes them: on a device, as features
    _captured: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, init=False)  # `_forward` as a CUDA graph

    def __post_init__(self) -> None:
        is_small = max(self.population.image_shape[:2]) <= SMALL_IMAGE_PIXELS
        self.batch_size = self.batch_size or GPU_EVAL_BATCH // (1 if is_small and self.device.type == "cuda" else 4)

    def evaluate_global(self, weights: Tensor) -> Score:
        return self._merge(self._scores(weights, self.dist.shard(np.arange(self.population.image_indices.size))))

    def evaluate_personal_layers(self, weights: Tensor, mask: Tensor, clients: ClientStates) -> Score:
        """Score as `Evaluator` does or, if no user of the population has personal layers, some clients' models."""
        if any(client_id in clients for client_id in self.population.user_ids.tolist()):
            client_ids = self.dist.shard(self.population.user_ids).tolist()
            own_models = ((k, with_personal_weights(weights, mask, clients.get(k))) for k in client_ids)
            return self.evaluate_personal_models(own_models)
        client_ids = self.dist.shard(_evenly_chosen(np.array(sorted(clients)), MAX_SCORED_MODELS)).tolist()
        models = (with_personal_weights(weights, mask, clients.get(client_id)) for client_id in client_ids)
        all_examples = np.arange(len(self.population))
        return self._merge(chain.from_iterable(self._scores(model, all_examples) for model in models))

    def evaluate_personal_models(self, models: Iterable[tuple[int, Tensor]]) -> Score:
        """Score users' own models, by client id, on their own examples; every process has models of other users."""
        users = {client_id: user for user, client_id in enumerate(self.population.user_ids.tolist())}
        scores = (self._scores(model, self.population.examples(users[client_id])) for client_id, model in models)
        return self._merge(chain.from_iterable(scores))

    @torch.no_grad()
    def outputs(self, weights: Tensor, examples: Ints) -> Tensor:
        """Return the outputs of the shared model for examples that this process has [N, C]."""
        self.model.module.eval()
        batches = [examples[first : first + self.batch_size] for first in range(0, len(examples), self.batch_size)]
        with deterministic_kernels(self.precision):
            return torch.cat([self._outputs(weights, batch)[0].clone() for batch in batches])

    def _merge(self, scores: Iterable[Score]) -> Score:
        """Return the sum over this process's scores and those of the others."""
        batches: Iterator[Any] = iter(scores)
        first = next(batches, None)
        local = self._no_score() if first is None else sum(batches, first)
        total, *others = self.dist.all_gather(local) if self.dist.size > 1 else [local]
        return cast(Score, sum(others, total))

    def _no_score(self) -> Score:
        score_class = MultiLabelScores if self.population.labels.multi else Accuracy
        return score_class.empty(len(self.population.classes), self.metrics)

    @torch.no_grad()
    def _scores(self, weights: Tensor, examples: Ints) -> Iterator[Score]:
        """Yield the score of one batch after another, each computed while the device works on the next."""
        self.model.module.eval()
        previous: tuple[Tensor, Tensor, Ints] | None = None
        for first in range(0, len(examples), self.batch_size):
            batch = examples[first : first + self.batch_size]
            with deterministic_kernels(self.precision):
                outputs, targets = self._outputs(weights, batch)
            if previous is not None:
                yield self._score(*previous)
            previous = outputs, targets, batch
        if previous is not None:
            yield self._score(*previous)

    def _score(self, outputs: Tensor, targets: Tensor, examples: Ints) -> Score:
        if not bool(torch.isfinite(outputs).all()):
            raise DivergenceError("the model's outputs are no longer finite")
        users = self.population.user_ids[self.population.owners(examples)]
        score: Score
        if self.population.labels.multi:
            score = MultiLabelScores.from_scores(outputs, targets, users)
        else:
            losses = F.cross_entropy(outputs, targets, reduction="none")
            score = Accuracy.from_predictions(outputs.argmax(1), targets, outputs.shape[1], losses, users)
        if not self.metrics.metrics:
            return score
        return replace(score, extra=self.metrics.update(as_array(outputs), as_array(targets)))

    def _outputs(self, weights: Tensor, examples: Ints) -> tuple[Tensor, Tensor]:
        images, targets = fetch(self.inputs or self.population, examples, self.device)
        if self.device.type != "cuda" or 2 * len(examples) <= self.batch_size:  # a graph would compute mostly padding
            return self._forward(weights, images), targets
        if self._captured is None:
            full_batch = images.new_zeros(self.batch_size, *images.shape[1:])
            self._captured = capture_forward(self._forward, weights, full_batch, self.compile)
        return self._captured(weights, images), targets

    def _forward(self, weights: Tensor, images: Tensor) -> Tensor:
        theta, statistics = weights[: self.model.num_trainable], weights[self.model.num_trainable :]
        dtype = compute_dtype(self.precision)
        inputs = self.model.to_memory_format(self.preprocess.evaluate(images)).to(dtype)
        return self.model(theta.to(dtype), statistics, inputs).float()


def with_personal_weights(weights: Tensor, mask: Tensor, client_state: Mapping[str, Tensor] | None) -> Tensor:
    """Return a client's model: the shared weights, with its personal ones where it has any."""
    return weights.masked_scatter(mask, client_state[PERSONAL_WEIGHTS]) if client_state else weights


def _evenly_chosen(items: Ints, max_items: int) -> Ints:
    """Return at most `max_items` of the items, evenly spaced."""
    return items[np.unique(np.linspace(0, len(items) - 1, max_items).round().astype(int))] if len(items) else items
