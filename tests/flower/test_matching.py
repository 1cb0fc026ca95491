"""A federation trains what `manyeyes run` trains: the same clients, examples, noise and weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from manyeyes.config.build import build_model
from manyeyes.core.population import Population
from manyeyes.flower.app import FederationConfig
from manyeyes.flower.server import serve
from manyeyes.flower.training_spec import parse_settings
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result
from manyeyes.training.train import train

COMMON = "model=linear rounds=4 algorithm.cohort_size=3 algorithm.batch_size=3 algorithm.lr=0.05 evaluate_every=2 engine.device=cpu"
PRIVATE = "algorithm=fedadam client_weighting=uniform privacy=central privacy.reproducible_noise=true"
PERSONAL = "algorithm=fedper algorithm.head_layers=1 model=lenet model.width=4"
CASES = {
    "fedavg": "algorithm=fedavg algorithm.epochs=2",
    "fedavg, crops, lenet": "model=lenet model.width=4 preprocess.crop=6 preprocess.flip_horizontal=true",
    "fedavgm": "algorithm=fedavgm",
    "fedadam": "algorithm=fedadam algorithm.max_examples=4",
    "fedir": "algorithm=fedir",
    "fedvc": "algorithm=fedvc algorithm.virtual_client_size=5",
    "fedprox": "algorithm=fedprox algorithm.mu=0.5",
    "scaffold": "algorithm=scaffold",
    "fedper": PERSONAL,
    "fednova": "algorithm=fednova",
    "mimelite": "algorithm=mimelite",
    "persistent momentum": "algorithm.momentum=0.9 algorithm.persist_state=true",
    "bf16": "compressor=bf16",
    "int8": "compressor=int8 compressor.block_size=16",
    "top-k of a body": f"compressor=topk compressor.fraction=0.2 {PERSONAL}",
    "median": "client_weighting=uniform aggregator=median",
    "central privacy": f"{PRIVATE} privacy.noise_multiplier=1 privacy.epsilon=0",
    "adaptive clipping": f"{PRIVATE} privacy.noise_multiplier=1 privacy.epsilon=0 privacy.target_quantile=0.5 sampler=poisson sampler.cohort_size=3",
}
COMPARED_METRICS = {"train_loss", "accuracy", "loss", "epsilon", "clipping_norm", "num_clients", "num_images"}


def train_in_process(population: Population, settings: str) -> Result:
    spec = parse_settings(settings)
    return train(
        population,
        build_model(spec.config, population),
        spec.algorithm,
        preprocess=spec.preprocess,
        rounds=spec.config.rounds,
        seed=spec.config.seed,
        evaluate_every=spec.config.evaluate_every,
        engine="reference",
        device="cpu",
    )


def make_config(folder: Path, settings: str, **options: Any) -> FederationConfig:
    return FederationConfig(
        settings=f"{COMMON} {settings}",
        folder=str(folder / "run"),
        num_clients=4,
        reply_timeout=5,
        join_timeout=5,
        **options,
    )


def weights(result: Result) -> torch.Tensor:
    return FlatModel(result.model).read()


FAST_CASES = ("fedavg", "central privacy")
UNPROTECTED: dict[str, Any] = {
    "max_norm_ratio": 0,
    "reject_norm_ratio": 0,
    "reject_opposed": False,
    "max_weight_ratio": 0,
}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[] if name in FAST_CASES else pytest.mark.slow)
        for name, settings in CASES.items()
    ],
)
def test_a_federated_run_equals_the_run_in_one_process(
    population: Population, make_grid: Callable[..., Any], tmp_path: Path, settings: str
) -> None:
    config = make_config(tmp_path, settings, **UNPROTECTED)
    federated = serve(make_grid(config), config)
    expected = train_in_process(population, config.settings)
    after_one_round = train_in_process(population, f"{config.settings} rounds=1")
    assert (weights(expected) - weights(after_one_round)).abs().max() > 1e-4  # training changes the weights
    torch.testing.assert_close(weights(federated), weights(expected), rtol=1e-5, atol=1e-6)
    for event, expected_event in zip(federated.events, expected.events, strict=True):
        for name in expected_event.keys() & COMPARED_METRICS & event.keys():
            assert event[name] == pytest.approx(expected_event[name], rel=1e-4), name
        assert not expected_event.keys() - event.keys() or "privacy" in settings  # with which clients do not evaluate


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"max_norm_ratio": 1.0, "reject_norm_ratio": 3.0}])
def test_a_protected_run_equals_the_run_in_one_process_with_the_bounded_mean(
    population: Population, make_grid: Callable[..., Any], tmp_path: Path, options: dict[str, float]
) -> None:
    config = make_config(tmp_path, "algorithm=fedavg", **options)
    federated = serve(make_grid(config), config)
    bounds = " ".join(f"aggregator.{name}={value}" for name, value in options.items())
    expected = train_in_process(population, f"{config.settings} aggregator=bounded_mean {bounds}")
    unprotected = train_in_process(population, config.settings)
    assert (weights(expected) - weights(unprotected)).abs().max() > 1e-4  # the bounds change the weights
    torch.testing.assert_close(weights(federated), weights(expected), rtol=1e-5, atol=1e-6)
