"""A federation trains what `manyeyes run` trains: the same clients, examples, noise and weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manyeyes.config.build import build_model
from manyeyes.core.population import Population
from manyeyes.flower.config import FederationConfig, parse_settings
from manyeyes.flower.server import serve
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result
from manyeyes.training.train import train

COMMON = (
    "model=linear rounds=4 algorithm.cohort=3 algorithm.batch=3 algorithm.lr=0.05 evaluate_every=2 engine.device=cpu"
)
PRIVATE = "algorithm=fedadam algorithm.weigh=equally privacy=central privacy.reproducible_noise=true"
PERSONAL = "algorithm=fedper algorithm.head_layers=1 model=lenet model.width=4"
CASES = {
    "fedavg": "algorithm=fedavg algorithm.epochs=2",
    "fedavg, crops, lenet": "model=lenet model.width=4 augment.crop=6 augment.flip_horizontal=true",
    "fedavgm": "algorithm=fedavgm",
    "fedadam": "algorithm=fedadam algorithm.limit=4",
    "fedir": "algorithm=fedir",
    "fedvc": "algorithm=fedvc algorithm.examples=5",
    "fedprox": "algorithm=fedprox algorithm.mu=0.5",
    "scaffold": "algorithm=scaffold",
    "fedper": PERSONAL,
    "fednova": "algorithm=fednova",
    "mimelite": "algorithm=mimelite",
    "kept momentum": "algorithm.momentum=0.9 algorithm.keep=true",
    "bf16": "compress=bf16",
    "int8": "compress=int8 compress.chunk=16",
    "top-k of a body": f"compress=topk compress.share=0.2 {PERSONAL}",
    "median": "algorithm.weigh=equally aggregate=median",
    "central privacy": f"{PRIVATE} privacy.noise=1 privacy.epsilon=0",
    "adaptive clip": f"{PRIVATE} privacy.noise=1 privacy.epsilon=0 privacy.quantile=0.5 algorithm.select=poisson",
}


def in_process(population: Population, words: str) -> Result:
    recipe = parse_settings(words)
    config = recipe.config
    module = build_model(config.model, population, recipe.augment, config.seed)
    return train(
        population,
        module,
        recipe.algorithm,
        preprocess=recipe.augment,
        rounds=config.rounds,
        seed=config.seed,
        evaluate_every=config.evaluate_every,
        engine="reference",
        device="cpu",
    )


def weights(result: Result) -> torch.Tensor:
    return FlatModel(result.model).read()


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_federated_run_equals_the_one_in_process(
    crowd: Population, federation: Callable[..., Any], tmp_path: Path, words: str
) -> None:
    rules = FederationConfig(
        settings=f"{COMMON} {words}", folder=str(tmp_path / "run"), clients=4, timeout=5, join_timeout=5
    )
    found = serve(federation(rules), rules)
    expected = in_process(crowd, rules.settings)
    reach = (weights(expected) - weights(in_process(crowd, f"{rules.settings} rounds=1"))).abs().max()
    assert reach > 1e-4  # training went somewhere
    torch.testing.assert_close(weights(found), weights(expected), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(found.events, expected.events, strict=True):
        for name in (
            theirs.keys() & {"train_loss", "accuracy", "loss", "epsilon", "clip", "clients", "images"} & ours.keys()
        ):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4), name
        assert np.array_equal(sorted(theirs.keys() - ours.keys()), []) or "privacy" in words
