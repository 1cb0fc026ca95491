"""From settings to what they describe, and back: `algorithms.py` stays the one place that defines the named ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from manyeyes.components import (
    BF16,
    SGD,
    Adam,
    AdaptiveServer,
    AllClients,
    Centralized,
    Ditto,
    EpochBatching,
    FedNovaWeighting,
    FineTune,
    HeadLayers,
    ImportanceReweighting,
    Int8,
    Krum,
    MatchingLayers,
    Median,
    MimeLiteMomentum,
    NormLayers,
    PoissonSampler,
    ProximalTerm,
    ScaffoldCorrection,
    Schedule,
    ServerSGD,
    SizeWeightedSampler,
    TopK,
    TrimmedMean,
    UniformSampler,
    VirtualClientBatching,
    WeightByExamples,
    WeightUniformly,
)
from manyeyes.config.schema import (
    AggregateConfig,
    AlgorithmConfig,
    AugmentConfig,
    CompressConfig,
    ModelConfig,
    PrivacyConfig,
    ScheduleConfig,
)
from manyeyes.core.algorithm import (
    Aggregator,
    Algorithm,
    Batching,
    ClientOptimizer,
    ClientWeighting,
    Compressor,
    Correction,
    PersonalLayers,
    Privacy,
    Sampler,
    ServerOptimizer,
)
from manyeyes.core.population import Population
from manyeyes.core.rng import derive_key
from manyeyes.data.preprocess import Preprocess
from manyeyes.data.repartition import repartition
from manyeyes.data.store.opening import open_population
from manyeyes.data.synthetic import dataset as world
from manyeyes.models import build_model as build_named_model
from manyeyes.privacy.mechanisms import CentralDP, LocalDP

COHORTS: dict[str, Callable[[AlgorithmConfig], Sampler]] = {
    "uniform": lambda c: UniformSampler(c.cohort),
    "poisson": lambda c: PoissonSampler(c.cohort),
    "by_size": lambda c: SizeWeightedSampler(c.cohort),
    "everyone": lambda c: AllClients(),
    "pooled": lambda c: Centralized(),
}
WEIGHTS: dict[str, ClientWeighting] = {
    "examples": WeightByExamples(),
    "equally": WeightUniformly(),
    "walk": FedNovaWeighting(),
}
CORRECTIONS: dict[str, Callable[[AlgorithmConfig], Correction | None]] = {
    "none": lambda c: None,
    "proximal": lambda c: ProximalTerm(c.mu),
    "control_variates": lambda c: ScaffoldCorrection(),
    "server_momentum": lambda c: MimeLiteMomentum(c.beta),
}
PERSONAL: dict[str, Callable[[AlgorithmConfig], PersonalLayers | None]] = {
    "none": lambda c: None,
    "head": lambda c: HeadLayers(c.head_layers),
    "norms": lambda c: NormLayers(),
    "layers": lambda c: MatchingLayers(tuple(c.layers)),
}
LOCALS: dict[str, Callable[[AlgorithmConfig, Schedule], ClientOptimizer]] = {
    "sgd": lambda c, s: SGD(c.lr, c.momentum, c.weight_decay, c.clip, c.keep, s),
    "adam": lambda c, s: Adam(c.lr, c.beta1, c.beta2, c.eps, c.weight_decay, c.clip, c.keep, s),
}
COMPRESSIONS: dict[str, Callable[[CompressConfig], Compressor]] = {
    "bf16": lambda c: BF16(),
    "int8": lambda c: Int8(c.chunk),
    "topk": lambda c: TopK(c.share),
}
AGGREGATES: dict[str, Callable[[AggregateConfig], Aggregator]] = {
    "median": lambda c: Median(),
    "trimmed": lambda c: TrimmedMean(c.trim),
    "krum": lambda c: Krum(c.wrong),
    "multikrum": lambda c: Krum(c.wrong, c.chosen),
}
ADAPTIVE = ("adam", "yogi", "adagrad")


def build_algorithm(config: AlgorithmConfig, rounds: int) -> Algorithm:
    """The algorithm that the settings describe, for a run of so many rounds."""
    draw: Batching = EpochBatching(config.epochs, config.batch, config.limit, config.head_epochs)
    if config.examples:
        if config.epochs > 1 or config.limit or config.head_epochs:
            raise ValueError(
                "algorithm.examples draws so many examples once a round: leave out algorithm.epochs, limit and "
                "head_epochs"
            )
        draw = VirtualClientBatching(config.examples, config.batch)
    if config.layers and config.personal != "layers":
        raise ValueError(
            f"algorithm.layers names layers that stay with the client, and algorithm.personal is {config.personal!r}: "
            "set it to layers, or leave them out"
        )
    return Algorithm(
        sampler=_chosen("algorithm.select", config.select, COHORTS)(config),
        batching=draw,
        client_optimizer=_chosen("algorithm.optimizer", config.optimizer, LOCALS)(
            config, _schedule(config.schedule, rounds)
        ),
        client_weighting=_chosen("algorithm.weigh", config.weigh, WEIGHTS),
        server_optimizer=_server(config, _schedule(config.server_schedule, rounds)),
        example_weighting=ImportanceReweighting(tuple(config.target) or None) if config.importance else None,
        correction=_chosen("algorithm.correction", config.correction, CORRECTIONS)(config),
        personal_layers=_chosen("algorithm.personal", config.personal, PERSONAL)(config),
        personal_model=Ditto(config.ditto) if config.ditto else None,
        adaptation=FineTune(config.adapt_epochs) if config.adapt_epochs else None,
    )


def build_whole(config: Any) -> Algorithm:
    """The algorithm of a run with all that its settings say of privacy, packing and aggregation."""
    packing = {"none": lambda c: None, **COMPRESSIONS}
    combining = {"mean": lambda c: None, **AGGREGATES}
    return replace(
        build_algorithm(config.algorithm, config.rounds),
        privacy=build_privacy(config.privacy),
        compressor=_chosen("compress.name", config.compress.name, packing)(config.compress),
        aggregator=_chosen("aggregate.name", config.aggregate.name, combining)(config.aggregate),
    )


def build_privacy(config: PrivacyConfig) -> Privacy | None:
    """What hides each user, as the settings describe it."""
    if config.name == "none":
        return None
    if config.name == "local":
        return LocalDP(config.noise, config.clip, config.delta, config.reproducible_noise)
    if config.name != "central":
        raise ValueError(f"privacy.name is {config.name!r}: choose none, central or local")
    return CentralDP(
        config.epsilon,
        config.noise,
        config.delta,
        config.clip,
        config.quantile,
        config.clip_rate,
        0.0,
        config.noise_cohort,
        config.accountant,
        config.reproducible_noise,
    )


def describe_algorithm(name: str, algorithm: Algorithm) -> AlgorithmConfig:
    """The settings that describe an algorithm: the inverse of `build_algorithm`."""
    config = AlgorithmConfig(name=name)
    cohort, draw, local, server = (
        algorithm.sampler,
        algorithm.batching,
        algorithm.client_optimizer,
        algorithm.server_optimizer,
    )
    names = {
        UniformSampler: "uniform",
        PoissonSampler: "poisson",
        SizeWeightedSampler: "by_size",
        AllClients: "everyone",
        Centralized: "pooled",
    }
    config.select = names[type(cohort)]
    config.cohort = getattr(cohort, "clients", config.cohort)
    for field in ("epochs", "batch", "limit", "examples"):
        setattr(config, field, getattr(draw, field, getattr(config, field)))
    config.optimizer = "adam" if isinstance(local, Adam) else "sgd"
    for field in ("lr", "momentum", "eps", "weight_decay", "clip", "keep"):
        setattr(config, field, getattr(local, field, getattr(config, field)))
    config.beta1, config.beta2 = getattr(local, "beta1", config.beta1), getattr(local, "beta2", config.beta2)
    config.schedule = ScheduleConfig(**vars(getattr(local, "schedule", Schedule())))
    config.weigh = next(word for word, part in WEIGHTS.items() if part == algorithm.client_weighting)
    if isinstance(algorithm.example_weighting, ImportanceReweighting):
        config.importance, config.target = True, list(algorithm.example_weighting.target_distribution or ())
    if isinstance(algorithm.correction, ProximalTerm):
        config.correction, config.mu = "proximal", algorithm.correction.proximal_strength
    elif isinstance(algorithm.correction, MimeLiteMomentum):
        config.correction, config.beta = "server_momentum", algorithm.correction.momentum
    elif isinstance(algorithm.correction, ScaffoldCorrection):
        config.correction = "control_variates"
    words = {type(None): "none", HeadLayers: "head", NormLayers: "norms", MatchingLayers: "layers"}
    config.personal = words[type(algorithm.personal_layers)]
    config.head_layers = getattr(algorithm.personal_layers, "layers", config.head_layers)
    config.layers = list(getattr(algorithm.personal_layers, "patterns", ()))
    config.head_epochs = getattr(draw, "head", 0)
    config.ditto = getattr(algorithm.personal_model, "pull", 0.0)
    config.adapt_epochs = getattr(algorithm.adaptation, "epochs", 0)
    config.server = server.variant if isinstance(server, AdaptiveServer) else "sgd"
    for field in ("lr", "momentum", "beta1", "beta2", "tau", "bias_correction"):
        setattr(config, f"server_{field}", getattr(server, field, getattr(config, f"server_{field}")))
    config.server_schedule = ScheduleConfig(**vars(getattr(server, "schedule", Schedule())))
    return config


def build_population(config: Any, seed: int = 0) -> Population:
    """The population that the settings describe; the seed decides who holds what is dealt out anew."""
    if config.name != "synthetic":
        found = open_population(Path(config.path), config.task or None)
        return repartition(found, config.users, config.classes_per_client, seed) if config.users else found
    options = {name: value for name, value in config.items() if name not in ("name", "task")}
    return world.make_synthetic(world.SyntheticImages(**options)).task(config.task)


def build_model(config: ModelConfig, population: Population, augment: Preprocess, seed: int) -> nn.Module:
    """The model that the settings describe, for the population's classes and image size."""
    return build_named_model(
        config.name,
        len(population.classes),
        norm=config.norm,
        size=augment.crop or population.image_shape[0],
        width=config.width,
        bottleneck=config.bottleneck,
        pretrained=config.weights or None,
        trainable=config.train,
        seed=derive_key(seed, "weights") % 2**63,
    )


def build_augment(config: AugmentConfig) -> Preprocess:
    return Preprocess(
        config.crop,
        config.pad,
        config.flip_horizontal,
        config.flip_vertical,
        scale=(config.scale_min, config.scale_max) if config.scale_min else None,
        ratio=(config.ratio_min, config.ratio_max),
        mean=tuple(config.mean),  # type: ignore[arg-type]  # which says so if they are not three
        std=tuple(config.std),  # type: ignore[arg-type]
    )


def _server(config: AlgorithmConfig, schedule: Schedule) -> ServerOptimizer:
    if config.server == "sgd":
        return ServerSGD(config.server_lr, config.server_momentum, schedule)
    rule = _chosen("algorithm.server", config.server, dict.fromkeys(("sgd", *ADAPTIVE), config.server))
    return AdaptiveServer(
        rule,
        config.server_lr,
        config.server_beta1,
        config.server_beta2,
        config.server_tau,
        config.server_bias_correction,
        schedule,
    )


def _schedule(config: ScheduleConfig, rounds: int) -> Schedule:
    length = 0 if config.kind == "constant" else config.rounds or rounds
    return Schedule(config.kind, length, config.warmup, config.final, config.power)


def run_words(config: Any) -> dict[str, Any]:
    """How the run goes, in the words of `run.settings.Settings`."""
    return {
        "rounds": config.rounds,
        "seed": config.seed,
        "evaluate_every": config.evaluate_every,
        "eval_split": config.evaluate_on,
        "evaluate_every_fraction": config.evaluate_early,
        "max_local_batches": config.batches,
        "select_best_on": config.best_on,
        "checkpoint_seconds": config.checkpoint_seconds,
        "engine": config.engine.name,
        "device": config.engine.device,
        "precision": config.engine.precision,
        "compile": config.engine.compile,
        "workers": config.engine.workers,
        "num_streams": config.engine.lanes,
        "image_storage": config.engine.resident,
        "prefetch_mib": config.engine.prefetch,
        "client_state_cache_mib": config.client_memory,
        "trackers": tuple(config.track.to),
        "title": config.algorithm.name,
    }


def _chosen(name: str, word: str, known: dict[str, Any]) -> Any:
    if word not in known:
        raise ValueError(f"{name} is {word!r}: choose {', '.join(known)}")
    return known[word]
