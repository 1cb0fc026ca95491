"""What settings describe: the algorithm, population, model and options of a run."""

from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import nn

from manyeyes.components import PoissonSampler, SizeWeightedSampler, WeightByExamples, WeightUniformly
from manyeyes.components.samplers import too_large_cohort
from manyeyes.config.groups import GROUPS, NO_COMPONENT
from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.population import Population
from manyeyes.core.registry import Registration, build, describe, instantiate
from manyeyes.core.rng import derive_key
from manyeyes.data.partition import repartition
from manyeyes.data.preprocess import Preprocess
from manyeyes.data.store.meta import read_meta
from manyeyes.engines.base import EngineOptions
from manyeyes.models import build_model as build_named_model
from manyeyes.models import weights_input
from manyeyes.training.config import RunConfig

Config = DictConfig | Mapping[str, Any]  # composed settings, or those of a run folder
LISTS = tuple(group.name for group in GROUPS.values() if group.is_list)


def build_algorithm(config: Config) -> Algorithm:
    """Return the named algorithm with every chosen slot in place of its own."""
    settings = plain(config)
    components: dict[str, Any] = {slot: _build_optional(slot, settings[slot]) for slot in SLOTS if settings.get(slot)}
    if "sources" in settings:  # in a run's folder, every slot is described in full
        return Algorithm(**{**dict.fromkeys(SLOTS), **components})
    algorithm = replace(build("algorithm", settings["algorithm"]), **components)
    return replace(algorithm, **_needed_for_privacy(algorithm, components))


def privacy_notes(config: Config) -> list[str]:
    """Return a sentence for each component of the named algorithm that `privacy` replaces in `build_algorithm`."""
    settings = plain(config)
    if "sources" in settings or not settings.get("privacy"):
        return []
    named, adapted, notes = build("algorithm", settings["algorithm"]), build_algorithm(settings), []
    for slot in ("sampler", "client_weighting"):
        old, new = getattr(named, slot), getattr(adapted, slot)
        if not settings.get(slot) and old != new:
            choice, privacy = describe(slot, new)["name"], settings["privacy"]["name"]
            old_choice, algorithm = describe(slot, old)["name"], settings["algorithm"]["name"]
            notes.append(f"privacy={privacy} sets {slot}={choice} instead of {algorithm}'s {slot}={old_choice}.")
    return notes


def _needed_for_privacy(algorithm: Algorithm, chosen: Container[str]) -> dict[str, Any]:
    """Return what private training needs in the slots that the settings leave to the named algorithm."""
    if algorithm.privacy is None:
        return {}
    covered, needed = algorithm.privacy.covered, dict[str, Any]()
    if "client_weighting" not in chosen and isinstance(algorithm.client_weighting, WeightByExamples):
        needed["client_weighting"] = WeightUniformly()
    if "sampler" not in chosen and isinstance(algorithm.sampler, SizeWeightedSampler):
        needed["sampler"] = PoissonSampler(algorithm.sampler.cohort_size)
    return {slot: part for slot, part in needed.items() if type(part) in covered.get(slot, ())}


def ignored_options(config: Config) -> dict[str, str]:
    """Return the options of the named algorithm that only set a component which is replaced, and its slot."""
    settings = plain(config)
    description, ignored = settings["algorithm"], dict[str, str]()
    if not any(settings.get(slot) for slot in SLOTS):
        return ignored
    algorithm = build("algorithm", description)
    for option in sorted(description.keys() - {"name"}):
        default = build("algorithm", {name: value for name, value in description.items() if name != option})
        changed = [slot for slot in SLOTS if getattr(default, slot) != getattr(algorithm, slot)]
        if changed and all(settings.get(slot) for slot in changed):
            ignored[option] = changed[0]
    return ignored


def _build_optional(slot: str, description: dict[str, Any]) -> Any:
    """Return the component of a slot, or None if it is switched off."""
    is_off = isinstance(description, Mapping) and description.get("name") == NO_COMPONENT
    return None if is_off else build(slot, description)


def build_population(config: Config) -> Population:
    """Return the population, with new clients if there is a partitioner, whose seed is the run's."""
    settings = plain(config)
    population = build("dataset", settings["data"])
    if not isinstance(population, Population):
        raise ValueError(f"data={settings['data']['name']} returned {type(population).__name__}: return a Population.")
    chosen = settings.get("partitioner")
    partitioner = _build_optional("partitioner", chosen) if chosen else None
    return population if partitioner is None else repartition(population, partitioner, settings["seed"])


def check_cohort(config: Config, algorithm: Algorithm) -> None:
    """Refuse a cohort larger than the population, as far as settings and metadata tell, before the data are built."""
    settings = plain(config)
    data = settings["partitioner"] if settings.get("partitioner") else settings["data"] or {}
    num_users = data.get("num_clients", data.get("users"))
    if "path" in data:
        with suppress(ValueError, OSError):  # which opening the data explains
            num_users = read_meta(Path(str(data["path"]))).get("users")
    if type(num_users) is int and (reason := too_large_cohort(algorithm.sampler, num_users)):
        raise ValueError(reason)


def build_preprocess(config: Config) -> Preprocess:
    """Return the preprocessing; what is not set is that of the model's pretrained weights."""
    settings = plain(config)
    preprocess: Preprocess = instantiate(Registration("preprocess", "Preprocess", Preprocess), settings["preprocess"])
    return preprocess.for_weights(weights_input(settings["model"]))


def build_model(config: Config, population: Population) -> nn.Module:
    """Return the model for the population's classes and image size, with initial weights from the run's seed."""
    settings = plain(config)
    options = dict(settings["model"])
    size = build_preprocess(settings).crop or population.image_shape[0]
    seed = derive_key(settings["seed"], "weights") % 2**63
    return build_named_model(options.pop("name"), len(population.classes), size=size, seed=seed, **options)


def build_run_config(config: Config) -> RunConfig:
    settings = plain(config)
    return RunConfig(**{option.name: settings[option.name] for option in fields(RunConfig)})


def build_engine_options(config: Config) -> EngineOptions:
    options = dict(plain(config)["engine"])
    name = options.pop("name", EngineOptions.engine)
    built: EngineOptions = instantiate(Registration("engine", str(name), EngineOptions), {"engine": name, **options})
    return built


def train_options(config: Config) -> dict[str, Any]:
    """Return the keyword arguments of `train`: the algorithm, and options of the run, its engine and what observes it."""
    settings = plain(config)
    return {
        "algorithm": build_algorithm(settings),
        "preprocess": build_preprocess(settings),
        **asdict(build_run_config(settings)),
        **asdict(build_engine_options(settings)),
        **{name: listed(settings.get(name)) for name in LISTS},  # descriptions, from which `train` builds components
    }


def describe_settings(config: Config) -> dict[str, Any]:
    """Return the part of the settings that cannot be read off the arguments of `train`: how components were chosen."""
    settings = plain(config)
    chosen = {
        slot: settings[slot] for slot in SLOTS if settings.get(slot) and settings[slot].get("name") != NO_COMPONENT
    }
    described = {name: settings.get(name) for name in ("data", "partitioner", "model", "algorithm")}
    return described | chosen | {name: listed(settings.get(name)) for name in LISTS}


def listed(items: Any) -> list[dict[str, Any]]:
    """Return the descriptions of a list of components: composed settings have them by key, a run folder as a list."""
    return list(items.values()) if isinstance(items, Mapping) else list(items or ())


def plain(config: Config) -> dict[str, Any]:
    """Return settings as plain data; one that must be given and is not ends in an OmegaConf error."""
    if isinstance(config, DictConfig):
        settings: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        return dict(settings)
    return dict(config)
