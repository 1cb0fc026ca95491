"""The setup of a run: the model on its device, the engine with what plans ahead for it, and the evaluators."""

import sys
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from manyeyes.components.client_optimizers import resolve_schedules
from manyeyes.components.samplers import Centralized
from manyeyes.components.weighting import resolve_target
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.plan import RoundPlan, plan_round
from manyeyes.core.population import Population, caveats_of
from manyeyes.core.rng import derive_key, make_rng
from manyeyes.data.feature_file import FeatureFile
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import DistInfo, EngineOptions, EngineSetup, dist_info
from manyeyes.engines.evaluation import Evaluator, LocalEvaluator
from manyeyes.engines.images import place_images
from manyeyes.engines.select import choose_device, make_engine
from manyeyes.io.steps import announce
from manyeyes.metrics import MetricSet
from manyeyes.metrics.base import NO_METRICS
from manyeyes.models.build import Model, make_module
from manyeyes.models.flat import FlatModel, with_seeded_dropout
from manyeyes.models.inspection import ModuleTraits, check_fits, probe
from manyeyes.training.builtin_callbacks import BestModel
from manyeyes.training.config import RunConfig
from manyeyes.training.features import ModelInputs, choose_inputs


@dataclass(frozen=True, eq=False)
class Splits:
    """The populations of a run."""

    train: Population  # one user for centralized training
    test: Population | None
    validation: Population | None  # that selects the best model
    by_users: dict[str, Population | None]  # as users hold them, by name


def make_splits(population: Population, test: Population | None, algorithm: Algorithm, config: RunConfig) -> Splits:
    """Split a population: the train split trains and `eval_split` is evaluated, unless `test` is given."""
    train = population
    if test is None and "split" in population.columns:
        train, test = population.split("train"), _split(population, "eval_split", config.eval_split)
    by_users = {"train": train, config.eval_split: test}
    if isinstance(algorithm.sampler, Centralized):
        train = train.pooled()
    if not (name := config.select_best_on):
        return Splits(train, test, None, by_users)
    if "split" not in population.columns or name == config.eval_split:
        raise ValueError(f"select_best_on is {name!r}: set it to a split of the data other than the evaluated one.")
    for slot in ("personal_layers", "personal_model", "adaptation"):
        if getattr(algorithm, slot) is not None:
            problem = f"select_best_on={name} selects among shared models and {slot} gives clients their own"
            raise ValueError(f"{problem}: leave select_best_on empty.")
    return Splits(train, test, _split(population, "select_best_on", name), by_users)


def _split(population: Population, setting: str, name: str) -> Population:
    try:
        return population.split(name)
    except ValueError as error:
        raise ValueError(f"{setting} is {name!r}, and {error}") from None


class PlanSource(Protocol):
    """Draws the plans of rounds, perhaps ahead of time."""

    def plan(self, round: int) -> RoundPlan: ...


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """All that a run works with; nothing in it changes."""

    algorithm: Algorithm
    population: Population  # that is trained on
    preprocess: Preprocess
    config: RunConfig
    module: nn.Module
    model: FlatModel  # a view of `module`, or its head
    device: torch.device
    engine: Engine
    evaluator: Evaluator | None = None
    best_model: BestModel | None = None
    plan_source: PlanSource | None = None  # None: each round draws its own plan
    dist: DistInfo = field(default_factory=DistInfo)
    engine_name: str = ""
    metrics: tuple[Any, ...] = ()  # that are reported in addition to the usual ones
    splits: dict[str, Population | None] = field(default_factory=dict)  # whose statistics are written
    feature_files: tuple[FeatureFile, ...] = ()  # that the model is trained on, where it is the head of `module`
    caveats: tuple[str, ...] = ()  # of the data


def make_setup(
    population: Population,
    model: Model,
    algorithm: Algorithm,
    test: Population | None,
    preprocess: Preprocess,
    config: RunConfig,
    options: EngineOptions,
    metrics: MetricSet,
) -> TrainingSetup:
    """Check a run, and put together what it works with: images where they are needed, the engine and the evaluators."""
    splits = make_splits(population, test, algorithm, config)
    height, width, channels = splits.train.image_shape
    num_classes, model_seed = len(splits.train.classes), derive_key(config.seed, "weights") % 2**63
    caveats = caveats_of(splits.by_users.values())
    algorithm.validate(splits.train)
    algorithm = resolve_schedules(algorithm, config.rounds)
    if algorithm.example_weighting is not None:
        algorithm = resolve_target(algorithm, population, config.eval_split)
    if algorithm.adaptation is not None and splits.test is not None:
        check_adaptation(splits.train, splits.test)
    if metrics.metrics:
        metrics.validate(splits.test or splits.train)
    if algorithm.privacy is not None:
        algorithm, config = limit_to_budget(algorithm, splits.train, config)

    device = choose_device(options.device)
    preprocess.check(height, width)
    image_size = preprocess.shape(height, width)
    module = make_module(model, num_classes, preprocess.crop or height, model_seed).to(device)
    check_fits(module, *image_size, num_classes, evaluated=splits.test is not None, channels=channels)
    flat_model = FlatModel(with_seeded_dropout(module))
    traits = probe(flat_model, *image_size, channels)
    if traits.mutated_buffer or not traits.trains_on_one:
        check_traits(traits, algorithm, splits, image_size)

    populations = [split for split in (splits.train, splits.test, splits.validation) if split is not None]
    images = ModelInputs(flat_model, preprocess, populations)
    inputs = choose_inputs(images, algorithm, config, options, dist_info())
    train, *evaluated = place_images(inputs.populations, options.image_storage, device)
    cohort_size = getattr(algorithm.sampler, "cohort_size", len(splits.train.user_ids))
    engine_setup = EngineSetup(
        inputs.model, train, inputs.preprocess, device, options, cohort_size, dist_info(), known_traits=traits
    )
    num_uniforms = inputs.preprocess.num_uniforms
    plan = partial(plan_round, algorithm, train, config.seed, num_augment_uniforms=num_uniforms)
    engine, plan_source = make_engine(algorithm, engine_setup, plan, config.rounds)

    def evaluate(population: Population, placed: Population, metrics: MetricSet = NO_METRICS) -> LocalEvaluator:
        return LocalEvaluator(
            model=inputs.model,
            population=population,
            inputs=placed,
            preprocess=inputs.preprocess,
            device=device,
            precision=engine.precision,
            compile=engine.compiles,
            dist=engine_setup.dist,
            metrics=metrics,
        )

    evaluated_split, validation = (*zip(populations[1:], evaluated, strict=True), None, None)[:2]
    return TrainingSetup(
        algorithm=algorithm,
        population=splits.train,
        preprocess=preprocess,
        config=config,
        module=module,
        model=inputs.model,
        device=device,
        engine=engine,
        evaluator=evaluated_split and evaluate(*evaluated_split, metrics=metrics),
        best_model=validation and BestModel(evaluate(*validation)),
        plan_source=plan_source,
        dist=engine_setup.dist,
        engine_name=engine.name,
        metrics=metrics.metrics,
        splits=splits.by_users,
        feature_files=inputs.files,
        caveats=caveats,
    )


def check_adaptation(train: Population, test: Population) -> None:
    """Refuse to fine-tune the model of users of whom none has training and test examples."""
    if not np.isin(train.user_ids, test.user_ids).any():
        problem = "Fine-tuning needs users with training and test examples and no user has both"
        raise ValueError(f"{problem}: split the data within users (data prepare --split per_user).")


def check_traits(traits: ModuleTraits, algorithm: Algorithm, splits: Splits, image_size: tuple[int, int]) -> None:
    """Refuse a model that federated training would change in part only, or whose norms cannot learn."""
    if traits.mutated_buffer:
        problem = f"The model changes its buffer {traits.mutated_buffer} when it trains"
        fix = "remove the layer that has the buffer"
        raise ValueError(f"{problem}, and clients send only the statistics of norms: {fix}.")
    if not traits.trains_on_one:
        _check_batches(algorithm, splits, image_size)


def check_norm_statistics(algorithm: Algorithm, model: FlatModel) -> None:
    """Refuse BatchNorm statistics that would be noised; those that stay with clients (FedBN) are not."""
    if algorithm.privacy is None:
        return
    layers = algorithm.personal_layers
    personal = set() if layers is None else layers.parameter_names(model.structure)
    if not bool(model.mask(personal.__contains__)[model.num_trainable :].all()):
        raise ValueError("Noise would make BatchNorm's statistics useless: set model.norm=group or frozen.")


def _check_batches(algorithm: Algorithm, splits: Splits, image_size: tuple[int, int]) -> None:
    """Refuse batches of one image, which a live BatchNorm cannot learn from."""
    cases = [(algorithm.batching, splits.train.num_examples)]
    if algorithm.adaptation is not None and splits.test is not None:
        adapted = np.isin(splits.train.user_ids, splits.test.user_ids)
        cases.append((algorithm.adaptation.local_algorithm(algorithm).batching, splits.train.num_examples[adapted]))
    for batching, sizes in cases:
        for num_held in np.unique(sizes).tolist():
            if ((batching.batches(num_held, make_rng(0, "draw")) >= 0).sum(1) == 1).any():
                height, width = image_size
                problem = f"Live BatchNorm cannot learn from a batch of one image of {height} x {width} pixels"
                fix = "change batching.batch_size, use larger images, or set model.single_image=running or model.norm=group"
                raise ValueError(f"{problem}, and a user with {num_held} images has one: {fix}.")


def limit_to_budget(algorithm: Algorithm, population: Population, config: RunConfig) -> tuple[Algorithm, RunConfig]:
    """Return the algorithm with its privacy calibrated for this run, and as many rounds as the budget allows."""
    announce("computing the noise of the privacy budget", "seconds; with privacy.accountant=pld up to minutes")
    algorithm, rounds = calibrate_privacy(algorithm, population, config.rounds)
    if rounds < config.rounds:
        limit = f"The privacy budget allows {rounds} of {config.rounds} rounds"
        print(f"{limit}: the run ends after round {rounds}.", file=sys.stderr)
    return algorithm, replace(config, rounds=rounds)


def calibrate_privacy(algorithm: Algorithm, population: Population, rounds: int) -> tuple[Algorithm, int]:
    """Return the algorithm with the noise that this many rounds need, and how many of them the budget allows."""
    if algorithm.privacy is None:
        return algorithm, rounds
    privacy = algorithm.privacy.calibrate(algorithm, population, rounds)
    allowed = privacy.max_rounds(rounds)
    if not allowed:
        fix = "raise privacy.epsilon or privacy.noise_multiplier"
        raise ValueError(f"One round spends more than the privacy budget: {fix}.")
    if allowed < rounds:  # the guarantee is about the rounds that are trained
        privacy = privacy.calibrate(algorithm, population, allowed)
    return replace(algorithm, privacy=privacy), allowed
