"""The setup of a run: the model on its device, the engine with what plans ahead for it, and the evaluators."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population
from manyeyes.core.registry import import_object
from manyeyes.core.rng import derive_key
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineBase, EngineOptions, EngineSetup
from manyeyes.engines.device_images import place_images
from manyeyes.engines.distributed import dist_info
from manyeyes.engines.distributed_engine import distribute
from manyeyes.engines.evaluation import LocalEvaluator
from manyeyes.engines.prefetch import ImagePrefetcher, PlanPrefetcher, reads_from_disk
from manyeyes.engines.select import choose_engine
from manyeyes.metrics import MetricSet
from manyeyes.models import build_model
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.fitting import check_fits
from manyeyes.models.flat import FlatModel
from manyeyes.training.config import RunConfig
from manyeyes.training.loop import TrainingSetup
from manyeyes.training.model_selection import BestModel
from manyeyes.training.splits import Splits

MIB = 2**20
Model = nn.Module | str | Callable[..., nn.Module]


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """The module of a run, and its weights as a flat vector."""

    module: nn.Module
    flat: FlatModel  # a view of `module`


def prepare_model(
    model: Model, splits: Splits, preprocess: Preprocess, seed: int, device: torch.device
) -> PreparedModel:
    """Build or copy the model of a run, and check that it fits the data."""
    population = splits.train
    preprocess.check(*population.image_shape[:2])
    module = make_module(model, population, preprocess, seed).to(device)
    image_size = preprocess.shape(*population.image_shape[:2])
    check_fits(module, *image_size, len(population.classes), evaluated=splits.test is not None)
    return PreparedModel(module, FlatModel(with_seeded_dropout(module)))


def make_module(model: Model, population: Population, preprocess: Preprocess, seed: int) -> nn.Module:
    """Return a module that the run may change: from a name, an import path or a factory, or a copy."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    arguments: dict[str, Any] = {
        "classes": len(population.classes),
        "size": preprocess.crop or population.image_shape[0],
        "seed": derive_key(seed, "weights") % 2**63,
    }
    if isinstance(model, str) and ":" not in model:
        return build_model(model, **arguments)
    factory = import_object(model, "model") if isinstance(model, str) else model
    parameters = inspect.signature(factory).parameters
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(arguments["seed"])
        module = factory(**{name: value for name, value in arguments.items() if name in parameters})
    if not isinstance(module, nn.Module):
        raise ValueError(f"model={model} returned a {type(module).__name__}: return a torch.nn.Module.")
    return module


def make_setup(
    algorithm: Algorithm,
    splits: Splits,
    model: PreparedModel,
    preprocess: Preprocess,
    config: RunConfig,
    options: EngineOptions,
    device: torch.device,
    metrics: MetricSet,
) -> TrainingSetup:
    """Put together what a run works with: images where they are needed, the engine and the evaluators."""
    populations = [one for one in (splits.train, splits.test, splits.validation) if one is not None]
    train, *evaluated = place_images(populations, options.image_storage, device)
    planner = partial(plan_round, algorithm, splits.train, config.seed, num_augment_uniforms=preprocess.num_uniforms)
    images = None
    if options.prefetch_mib and reads_from_disk(train.images):
        images = ImagePrefetcher(train, planner, config.rounds, options.prefetch_mib * MIB)
        train = replace(train, images=images)
    cohort_size = getattr(algorithm.sampler, "cohort_size", len(splits.train.user_ids))
    engine_setup = EngineSetup(model.flat, train, preprocess, device, options, cohort_size, dist_info())
    engine = distribute(choose_engine(algorithm, engine_setup), engine_setup)
    if algorithm.personal_layers is not None:
        engine.personal_mask(algorithm.personal_layers)  # refuses patterns that match no layer before a folder exists
    evaluate = partial(
        LocalEvaluator,
        model.flat,
        preprocess=preprocess,
        device=device,
        precision=engine.precision,
        compile=engine.compiles,
        dist=engine_setup.dist,
    )
    test, validation = (*evaluated, None, None)[:2]
    return TrainingSetup(
        algorithm=algorithm,
        population=splits.train,
        preprocess=preprocess,
        config=config,
        module=model.module,
        model=model.flat,
        device=device,
        engine=engine,
        evaluator=None if test is None else evaluate(population=test, metrics=metrics),
        best_model=None if validation is None else BestModel(evaluate(population=validation)),
        plan_source=images or _plan_while_device_is_busy(engine, planner, config.rounds),
        dist=engine_setup.dist,
        engine_name=engine.name,
        metrics=metrics.metrics,
    )


def _plan_while_device_is_busy(engine: EngineBase, planner: Callable[[int], RoundPlan], rounds: int) -> PlanPrefetcher:
    """Return a source of plans that draws the next one when the engine waits for its device."""
    source = PlanPrefetcher(planner, rounds, engine.prefetch)
    engine.on_device_busy = source.prepare
    return source
