"""What tests of engines share: setups of engines, rounds on an engine, and comparisons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from manyeyes.components import AllClients, Centralized
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.population import Population
from manyeyes.core.round import run_round
from manyeyes.core.state import MutableClientStates, RoundContext, RoundMetrics, ServerState, init_state
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions, EngineSetup
from manyeyes.models.flat import FlatModel

CPU = torch.device("cpu")
NO_AUGMENTATION = Preprocess()


def make_setup(
    module: nn.Module | FlatModel,
    population: Population,
    preprocess: Preprocess = NO_AUGMENTATION,
    device: torch.device = CPU,
    **options: Any,
) -> EngineSetup:
    """Return the setup of an engine, by default in float32 and without compiling."""
    model = module if isinstance(module, FlatModel) else FlatModel(module.to(device))
    engine_options = EngineOptions(**{"precision": "float32", "compile": False, **options})
    return EngineSetup(model, population, preprocess, device, engine_options)


def with_all_clients(algorithm: Algorithm) -> Algorithm:
    return algorithm if isinstance(algorithm.sampler, Centralized) else replace(algorithm, sampler=AllClients())


def initial_state(algorithm: Algorithm, module: nn.Module | FlatModel) -> ServerState:
    model = module if isinstance(module, FlatModel) else FlatModel(module)
    return init_state(algorithm, model.read(), model.num_trainable)


def make_round_context(algorithm: Algorithm, lr: float, **values: Any) -> RoundContext:
    required = {"correction": algorithm.correction, "correction_state": None, "personal_mask": None}
    return RoundContext(client_optimizer=algorithm.client_optimizer, lr=lr, **(required | values))


def run_rounds(
    algorithm: Algorithm,
    engine: Engine,
    population: Population,
    state: ServerState,
    num_rounds: int,
    seed: int = 0,
    client_states: MutableClientStates | None = None,
) -> tuple[ServerState, MutableClientStates, RoundMetrics]:
    """Return the server's state after some rounds, the clients' states, and the metrics of the last round."""
    client_states = {} if client_states is None else client_states
    for _ in range(num_rounds):
        state, metrics = run_round(algorithm, state, population, engine, client_states, seed)
    return state, client_states, metrics


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.vector_norm(actual - expected) / torch.linalg.vector_norm(expected).clamp_min(1e-12))
