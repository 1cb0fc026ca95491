"""A federated algorithm: one component for each slot, and the protocol of each slot.

A round is Algorithm 1 of Hsu, Qi and Brown, "Federated Visual Classification with Real-World Data Distribution"
(2020): sample clients, train locally, aggregate, step the server (`manyeyes.core.round`). Axes: K clients, S steps,
B examples per batch, C classes, P trainable parameters, W shared values (P, then live BatchNorm statistics).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, Self, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from manyeyes.core.guarantee import check_private
from manyeyes.core.notebook import html_table, short_repr
from manyeyes.core.population import Floats, Ints, Population
from manyeyes.core.registry import checks_keywords

if TYPE_CHECKING:
    from manyeyes.core.plan import RoundPlan
    from manyeyes.core.state import ClientStates, CohortResult, RoundContext

OptState = tuple[Tensor, ...]  # of a client optimizer, from step to step
State = Tensor | None  # of a correction, at the server or at a client before its first round
Tensors = dict[str, Tensor]
Doubles = NDArray[np.float64]


class Sampler(Protocol):
    """Which clients take part in a round."""

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        """Return the positions of the sampled users in the population [K]."""


class Batching(Protocol):
    """Which examples a client trains on, and in which batches."""

    @property
    def batch_size(self) -> int: ...

    def batches(self, num_held: int, rng: np.random.Generator) -> Ints:
        """Return positions 0..num_held-1 in training order [S, B]; -1 pads the last batch."""

    def num_examples(self, num_held: int) -> int:
        """Return n_k, the number of examples that a client with `num_held` examples counts as."""

    def phases(self, num_steps: int) -> Ints | None:
        """Return which layers train in each step [S] (ALL, PERSONAL or SHARED of `core.plan`); None: always all."""


class ClientOptimizer(Protocol):
    """How a client steps: a pure function of flat vectors [P], or of several clients' at once [K, P]."""

    @property
    def max_grad_norm(self) -> float:
        """The bound on the norm of each gradient; 0 for none."""

    @property
    def persist_state(self) -> bool:
        """Whether the optimizer state is carried from round to round."""

    def learning_rate(self, round: int) -> float:
        """Return the learning rate of round 0, 1, ..."""

    def init(self, theta: Tensor) -> OptState: ...

    def step(self, theta: Tensor, grad: Tensor, opt_state: OptState, lr: float | Tensor) -> tuple[Tensor, OptState]: ...


class ClientWeighting(Protocol):
    """How much a client counts: the update is sum(weights * updates) / normalizer."""

    def weights(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> Doubles: ...

    def normalizer(self, algorithm: Algorithm, num_examples_K: Ints, num_steps_K: Ints, round: int) -> float: ...


class ServerOptimizer(Protocol):
    """How the server steps, given the update theta_t - theta of the clients."""

    def init(self, theta: Tensor) -> Tensors: ...

    def step(self, theta: Tensor, update: Tensor, state: Tensors, round: int) -> tuple[Tensor, Tensors]: ...


class ExampleWeighting(Protocol):
    """How much an example counts in the loss."""

    def class_weights(self, client_counts: Ints, population_counts: Ints) -> Floats:
        """Return the weight of an example of each class [C]."""


@dataclass(frozen=True, eq=False)
class ServerStep:
    """What the server knows when a correction takes part in its step."""

    theta_before: Tensor  # [P]
    theta_after: Tensor  # after the server optimizer
    update: Tensor  # the aggregated theta_t - theta
    uploads: Tensor | None  # sum of what the accepted clients uploaded for the correction
    num_sampled: int
    num_accepted: int
    num_clients: int  # users of the population


class Correction(Protocol):
    """What is added to each local gradient g: gradient_scale * g + proximal_strength * (theta - theta_t) + offset."""

    @property
    def gradient_scale(self) -> float: ...

    @property
    def proximal_strength(self) -> float: ...

    @property
    def needs_full_gradient(self) -> bool:
        """Whether it needs the gradient of all of a client's examples at theta_t."""

    @property
    def uploads(self) -> bool:
        """Whether clients upload more than their update."""

    @property
    def downloads(self) -> bool:
        """Whether clients receive the correction's server state."""

    def init(self, theta: Tensor) -> State:
        """Return the correction's server state."""

    def offset(self, correction_state: State, client_state: State) -> State: ...

    def client_update(
        self, correction_state: State, client_state: State, update: Tensor, steps_times_lr: float, full_gradient: State
    ) -> tuple[State, State]:
        """Return the client's new state and what it uploads."""

    def server_update(self, correction_state: State, step: ServerStep) -> tuple[State, Tensor]:
        """Return the new server state and the new theta: `step.theta_after`, or a correction of it."""


class PersonalLayers(Protocol):
    """Which layers stay with the client."""

    def parameter_names(self, module: nn.Module) -> set[str]:
        """Return the names of their parameters and buffers."""


class Privacy(Protocol):
    """A mechanism that bounds what the trained model reveals of a user."""

    @property
    def reproducible_noise(self) -> bool:
        """Whether the noise follows from the run's seed."""

    @property
    def covered(self) -> Mapping[str, tuple[type, ...]]:
        """The classes that the guarantee holds for, by slot, in the slots that see more than one user's data."""

    def calibrate(self, algorithm: Algorithm, population: Population, rounds: int) -> Privacy:
        """Return the mechanism with what follows from a run's users and rounds."""

    def init(self) -> Tensors:
        """Return the mechanism's server state."""

    def clipping_bound(self, privacy_state: Tensors) -> float:
        """Return the bound on the norm of each update of the round."""

    def privatize(
        self, result: CohortResult, plan: RoundPlan, context: RoundContext, privacy_state: Tensors, noise_seed: int
    ) -> tuple[Tensor, Tensors]:
        """Return the mean update with noise [W], and the new server state."""

    def epsilon_spent(self, rounds: int, privacy_state: Tensors) -> float: ...

    def max_rounds(self, rounds: int) -> int:
        """Return how many of `rounds` rounds the budget allows."""

    def describe(self) -> str:
        """Return the guarantee in words, for a report."""


class PersonalModel(Protocol):
    """A model of each client's own, which trains on the same batches as the shared one and is never sent."""

    @property
    def correction(self) -> Correction:
        """What ties it to the server's weights."""

    @property
    def personal_layers(self) -> PersonalLayers:
        """All layers of the model."""


class Adaptation(Protocol):
    """What a client does with the shared model before it is evaluated on that client's own examples."""

    def local_algorithm(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm of a round in which every client trains all layers for itself."""


class Compressor(Protocol):
    """How a client's update is encoded for the upload."""

    @property
    def error_feedback(self) -> bool:
        """Whether the client keeps what encoding lost, and adds it to its next update."""

    def num_bytes(self, num_elements: int) -> int:
        """Return the size of an encoded update."""

    def encode(self, update_N: Tensor, rng: np.random.Generator) -> Tensors: ...

    def decode(self, arrays: Tensors, num_elements: int) -> Tensor: ...


class Aggregator(Protocol):
    """How the clients' updates become one, where that is not their weighted sum."""

    def init(self, weights: Tensor) -> Tensors:
        """Return the aggregator's server state."""

    def aggregate(
        self, updates_KW: Tensor, weights_K: Tensor, server_weights: Tensor, state: Tensors
    ) -> tuple[Tensor, Tensors]:
        """Return the update [W] of the accepted clients, and the new state."""


class Loss(Protocol):
    """The training loss: pure tensor code, so that engines can vectorize and capture it."""

    def __call__(self, outputs_BC: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example [B]; targets are class ids [B] or multi-hot rows [B, C]."""


class Engine(Protocol):
    """Trains the clients of a plan; a context manager that owns processes and device memory."""

    @property
    def num_trainable(self) -> int:
        """P, the number of trainable values."""

    @property
    def num_augment_uniforms(self) -> int:
        """The number of random numbers for the augmentation of one example."""

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        """Return the mask of the weights that belong to personal layers [W]; the same tensor for the same layers."""

    def prefetch(self, plan: RoundPlan) -> None:
        """Prepare a coming round, such as its images."""

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Train the clients of a round, and return the sum of their updates."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None:
        """Release processes and device memory."""


@checks_keywords
@dataclass(frozen=True)
class Algorithm:
    """The components of an algorithm; each may refuse a combination by a method `incompatibility`."""

    sampler: Sampler
    batching: Batching
    client_optimizer: ClientOptimizer
    client_weighting: ClientWeighting
    server_optimizer: ServerOptimizer
    example_weighting: ExampleWeighting | None = None  # None: all examples count the same
    correction: Correction | None = None
    personal_layers: PersonalLayers | None = None
    privacy: Privacy | None = None
    personal_model: PersonalModel | None = None
    adaptation: Adaptation | None = None
    compressor: Compressor | None = None  # None: updates travel as float32
    aggregator: Aggregator | None = None  # None: the weighted mean
    loss: Loss | None = None  # None: cross-entropy, or binary cross-entropy with several labels per image

    def __repr__(self) -> str:
        return f"Algorithm({', '.join(f'{slot}={component}' for slot, component in self._components().items())})"

    def _repr_html_(self) -> str:
        return html_table("Algorithm", self._components())

    def _components(self) -> dict[str, str]:
        """Return the filled slots, each as its component would be typed."""
        return {slot: short_repr(part) for slot in SLOTS if (part := getattr(self, slot)) is not None}

    @property
    def keeps_client_states(self) -> bool:
        """Whether clients keep anything from round to round."""
        parts = (self.correction, self.personal_layers, self.personal_model)
        has_residual = self.compressor is not None and self.compressor.error_feedback
        return any(part is not None for part in parts) or self.client_optimizer.persist_state or has_residual

    def validate(self, population: Population) -> None:
        """Raise ValueError for a combination that a component refuses, before round 1."""
        for slot, hint in get_type_hints(Algorithm).items():
            component, protocol = getattr(self, slot), (*get_args(hint), hint)[0]
            missing = [name for name in vars(protocol) if name[0] != "_" and not hasattr(component, name)]
            if component is not None and missing:
                kind = type(component).__name__
                if isinstance(component, str):
                    raise ValueError(f"{slot} is {component!r}: give a component of manyeyes.components")
                raise ValueError(f"{slot}={kind} has no {missing[0]}: add it, as manyeyes.core.algorithm declares it")
            incompatibility = getattr(component, "incompatibility", None)
            if incompatibility is not None and (reason := incompatibility(self, population)):
                raise ValueError(reason)
        if self.privacy is not None:
            check_private(self)  # components can add refusals, and cannot remove these


SLOTS: tuple[str, ...] = tuple(slot.name for slot in fields(Algorithm))
