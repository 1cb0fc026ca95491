"""From settings to what they describe, and back: `algorithms.py` stays the one place that defines the named ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from manyeyes.algorithm import Algorithm, Cohort, Combine, Draw, Privacy, Server, Weigh
from manyeyes.chance import key
from manyeyes.conf.schema import (
    AggregateConfig,
    AlgorithmConfig,
    AugmentConfig,
    CompressConfig,
    ModelConfig,
    PrivacyConfig,
    ScheduleConfig,
)
from manyeyes.data import world
from manyeyes.data.augment import Augment
from manyeyes.data.dealing import deal
from manyeyes.data.opening import open_population
from manyeyes.models import build as build_named_model
from manyeyes.parts import (
    BF16,
    SGD,
    Adam,
    ByExamples,
    BySize,
    ByWalk,
    ControlVariates,
    Ditto,
    Epochs,
    Equally,
    Everyone,
    FineTune,
    FixedSize,
    Head,
    ImportanceRatio,
    Int8,
    Krum,
    Layers,
    Median,
    Norms,
    Poisson,
    Pooled,
    Proximal,
    Schedule,
    ServerAdaptive,
    ServerMomentum,
    ServerSGD,
    TopK,
    TrimmedMean,
    Uniform,
)
from manyeyes.parts.privacy import AdaptiveClip, CentralDP, Clip, LocalDP
from manyeyes.population import Population
from manyeyes.work import Compress, Correction, Local, Personal

COHORTS: dict[str, Callable[[AlgorithmConfig], Cohort]] = {
    "uniform": lambda c: Uniform(c.cohort),
    "poisson": lambda c: Poisson(c.cohort),
    "by_size": lambda c: BySize(c.cohort),
    "everyone": lambda c: Everyone(),
    "pooled": lambda c: Pooled(),
}
WEIGHTS: dict[str, Weigh] = {"examples": ByExamples(), "equally": Equally(), "walk": ByWalk()}
CORRECTIONS: dict[str, Callable[[AlgorithmConfig], Correction | None]] = {
    "none": lambda c: None,
    "proximal": lambda c: Proximal(c.mu),
    "control_variates": lambda c: ControlVariates(),
    "server_momentum": lambda c: ServerMomentum(c.beta),
}
PERSONAL: dict[str, Callable[[AlgorithmConfig], Personal | None]] = {
    "none": lambda c: None,
    "head": lambda c: Head(c.head_layers),
    "norms": lambda c: Norms(),
    "layers": lambda c: Layers(tuple(c.layers)),
}
LOCALS: dict[str, Callable[[AlgorithmConfig, Schedule], Local]] = {
    "sgd": lambda c, s: SGD(c.lr, c.momentum, c.weight_decay, c.clip, c.keep, s),
    "adam": lambda c, s: Adam(c.lr, (c.beta1, c.beta2), c.eps, c.weight_decay, c.clip, c.keep, s),
}
COMPRESSIONS: dict[str, Callable[[CompressConfig], Compress]] = {
    "bf16": lambda c: BF16(),
    "int8": lambda c: Int8(c.chunk),
    "topk": lambda c: TopK(c.share),
}
AGGREGATES: dict[str, Callable[[AggregateConfig], Combine]] = {
    "median": lambda c: Median(),
    "trimmed": lambda c: TrimmedMean(c.trim),
    "krum": lambda c: Krum(c.wrong),
    "multikrum": lambda c: Krum(c.wrong, c.chosen),
}
ADAPTIVE = ("adam", "yogi", "adagrad")


def build_algorithm(config: AlgorithmConfig, rounds: int) -> Algorithm:
    """The algorithm that the settings describe, for a run of so many rounds."""
    draw: Draw = Epochs(config.epochs, config.batch, config.limit, config.head_epochs)
    if config.examples:
        if config.epochs > 1 or config.limit or config.head_epochs:
            raise ValueError(
                "algorithm.examples draws so many examples once a round: leave out algorithm.epochs, limit and "
                "head_epochs"
            )
        draw = FixedSize(config.examples, config.batch)
    if config.layers and config.personal != "layers":
        raise ValueError(
            f"algorithm.layers names layers that stay with the client, and algorithm.personal is {config.personal!r}: "
            "set it to layers, or leave them out"
        )
    return Algorithm(
        cohort=_chosen("algorithm.select", config.select, COHORTS)(config),
        draw=draw,
        local=_chosen("algorithm.optimizer", config.optimizer, LOCALS)(config, _schedule(config.schedule, rounds)),
        weigh=_chosen("algorithm.weigh", config.weigh, WEIGHTS),
        server=_server(config, _schedule(config.server_schedule, rounds)),
        reweigh=ImportanceRatio(tuple(config.target) or None) if config.importance else None,
        correct=_chosen("algorithm.correction", config.correction, CORRECTIONS)(config),
        personal=_chosen("algorithm.personal", config.personal, PERSONAL)(config),
        beside=Ditto(config.ditto) if config.ditto else None,
        adapt=FineTune(config.adapt_epochs) if config.adapt_epochs else None,
    )


def build_whole(config: Any) -> Algorithm:
    """The algorithm of a run with all that its settings say of privacy, packing and aggregation."""
    packing = {"none": lambda c: None, **COMPRESSIONS}
    combining = {"mean": lambda c: None, **AGGREGATES}
    return replace(
        build_algorithm(config.algorithm, config.rounds),
        privacy=build_privacy(config.privacy),
        compress=_chosen("compress.name", config.compress.name, packing)(config.compress),
        aggregate=_chosen("aggregate.name", config.aggregate.name, combining)(config.aggregate),
    )


def build_privacy(config: PrivacyConfig) -> Privacy | None:
    """What hides each user, as the settings describe it."""
    if config.name == "none":
        return None
    if config.name == "local":
        return LocalDP(config.noise, config.clip, config.delta, config.reproducible_noise)
    if config.name != "central":
        raise ValueError(f"privacy.name is {config.name!r}: choose none, central or local")
    clip = AdaptiveClip(config.clip, config.quantile, config.clip_rate) if config.quantile else Clip(config.clip)
    return CentralDP(
        config.epsilon,
        config.noise,
        config.delta,
        clip,
        config.noise_cohort,
        config.accountant,
        config.reproducible_noise,
    )


def describe_algorithm(name: str, algorithm: Algorithm) -> AlgorithmConfig:
    """The settings that describe an algorithm: the inverse of `build_algorithm`."""
    config = AlgorithmConfig(name=name)
    cohort, draw, local, server = algorithm.cohort, algorithm.draw, algorithm.local, algorithm.server
    names = {Uniform: "uniform", Poisson: "poisson", BySize: "by_size", Everyone: "everyone", Pooled: "pooled"}
    config.select = names[type(cohort)]
    config.cohort = getattr(cohort, "clients", config.cohort)
    for field in ("epochs", "batch", "limit", "examples"):
        setattr(config, field, getattr(draw, field, getattr(config, field)))
    config.optimizer = "adam" if isinstance(local, Adam) else "sgd"
    for field in ("lr", "momentum", "eps", "weight_decay", "clip", "keep"):
        setattr(config, field, getattr(local, field, getattr(config, field)))
    config.beta1, config.beta2 = getattr(local, "betas", (config.beta1, config.beta2))
    config.schedule = ScheduleConfig(**vars(getattr(local, "schedule", Schedule())))
    config.weigh = next(word for word, part in WEIGHTS.items() if part == algorithm.weigh)
    if isinstance(algorithm.reweigh, ImportanceRatio):
        config.importance, config.target = True, list(algorithm.reweigh.target or ())
    if isinstance(algorithm.correct, Proximal):
        config.correction, config.mu = "proximal", algorithm.correct.pull
    elif isinstance(algorithm.correct, ServerMomentum):
        config.correction, config.beta = "server_momentum", algorithm.correct.beta
    elif isinstance(algorithm.correct, ControlVariates):
        config.correction = "control_variates"
    words = {type(None): "none", Head: "head", Norms: "norms", Layers: "layers"}
    config.personal = words[type(algorithm.personal)]
    config.head_layers = getattr(algorithm.personal, "layers", config.head_layers)
    config.layers = list(getattr(algorithm.personal, "patterns", ()))
    config.head_epochs = getattr(draw, "head", 0)
    config.ditto = getattr(algorithm.beside, "pull", 0.0)
    config.adapt_epochs = getattr(algorithm.adapt, "epochs", 0)
    config.server = server.rule if isinstance(server, ServerAdaptive) else "sgd"
    for field in ("lr", "momentum", "beta1", "beta2", "tau", "bias_correction"):
        setattr(config, f"server_{field}", getattr(server, field, getattr(config, f"server_{field}")))
    config.server_schedule = ScheduleConfig(**vars(getattr(server, "schedule", Schedule())))
    return config


def build_population(config: Any, seed: int = 0) -> Population:
    """The population that the settings describe; the seed decides who holds what is dealt out anew."""
    if config.name != "world":
        found = open_population(Path(config.path), config.task or None)
        return deal(found, config.users, config.classes_per_client, seed) if config.users else found
    options = {name: value for name, value in config.items() if name not in ("name", "task")}
    return world.make(world.World(**options)).task(config.task)


def build_model(config: ModelConfig, population: Population, augment: Augment, seed: int) -> nn.Module:
    """The model that the settings describe, for the population's classes and image size."""
    return build_named_model(
        config.name,
        len(population.classes),
        norm=config.norm,
        size=augment.crop or population.image_shape[0],
        width=config.width,
        bottleneck=config.bottleneck,
        weights=config.weights or None,
        train=config.train,
        seed=key(seed, "weights") % 2**63,
    )


def build_augment(config: AugmentConfig) -> Augment:
    return Augment(
        config.crop,
        config.pad,
        config.flip_horizontal,
        config.flip_vertical,
        scale=(config.scale_min, config.scale_max) if config.scale_min else None,
        ratio=(config.ratio_min, config.ratio_max),
        mean=tuple(config.mean),  # type: ignore[arg-type]  # which says so if they are not three
        std=tuple(config.std),  # type: ignore[arg-type]
    )


def _server(config: AlgorithmConfig, schedule: Schedule) -> Server:
    if config.server == "sgd":
        return ServerSGD(config.server_lr, config.server_momentum, schedule)
    rule = _chosen("algorithm.server", config.server, dict.fromkeys(("sgd", *ADAPTIVE), config.server))
    return ServerAdaptive(
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
        "evaluate_on": config.evaluate_on,
        "evaluate_early": config.evaluate_early,
        "batches": config.batches,
        "best_on": config.best_on,
        "checkpoint_seconds": config.checkpoint_seconds,
        "engine": config.engine.name,
        "device": config.engine.device,
        "precision": config.engine.precision,
        "compile": config.engine.compile,
        "workers": config.engine.workers,
        "lanes": config.engine.lanes,
        "resident": config.engine.resident,
        "prefetch": config.engine.prefetch,
        "client_memory": config.client_memory,
        "trackers": tuple(config.track.to),
        "title": config.algorithm.name,
    }


def _chosen(name: str, word: str, known: dict[str, Any]) -> Any:
    if word not in known:
        raise ValueError(f"{name} is {word!r}: choose {', '.join(known)}")
    return known[word]
