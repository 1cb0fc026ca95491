"""What settings describe: the algorithm, population, model and options of a run."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import nn

from manyeyes.config.datasets import DATA_SOURCES
from manyeyes.config.groups import ENGINE_SETTINGS, FOLDER_OPTIONS, NO_COMPONENT, run_options
from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.population import Population
from manyeyes.core.registry import build
from manyeyes.core.rng import derive_key
from manyeyes.data.preprocess import Preprocess
from manyeyes.models import build_model as build_named_model
from manyeyes.training.config import RunConfig

Config = DictConfig | Mapping[str, Any]  # composed settings, or those of a run folder


def build_algorithm(config: Config) -> Algorithm:
    """Return the named algorithm with every chosen slot in place of its own."""
    settings = plain(config)
    rounds = settings["rounds"]
    slots = {slot: settings[slot] for slot in SLOTS if settings.get(slot) is not None}
    components: dict[str, Any] = {slot: _build_slot(slot, description, rounds) for slot, description in slots.items()}
    if "sources" in settings:  # in a run's folder, every slot is described in full
        return Algorithm(**{**dict.fromkeys(SLOTS), **components})
    return replace(build("algorithm", with_rounds(settings["algorithm"], rounds)), **components)


def _build_slot(slot: str, description: dict[str, Any], rounds: int) -> Any:
    return None if description["name"] == NO_COMPONENT else build(slot, with_rounds(description, rounds))


def with_rounds(description: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Return a component's description in which a schedule without a length spans all rounds of the run."""
    schedule = description.get("schedule")
    if not isinstance(schedule, Mapping) or schedule.get("kind") == "constant" or schedule.get("rounds"):
        return dict(description)
    return {**description, "schedule": {**schedule, "rounds": rounds}}


def build_population(config: Config) -> Population:
    """Return the population; the run's seed decides which new clients hold what, if examples are repartitioned."""
    settings = plain(config)
    options = dict(settings["data"])
    name = options.pop("name")
    if name in DATA_SOURCES:
        return DATA_SOURCES[name].load(options, settings["seed"])
    population = build("dataset", settings["data"])
    if not isinstance(population, Population):
        raise ValueError(f"data={name} must return a Population, not {type(population).__name__}.")
    return population


def build_preprocess(config: Config) -> Preprocess:
    """Return the preprocessing of images."""
    options: dict[str, Any] = {}
    options |= {name: tuple(v) if isinstance(v, list) else v for name, v in plain(config)["preprocess"].items()}
    return Preprocess(**options)


def build_model(config: Config, population: Population) -> nn.Module:
    """Return the model for the population's classes and image size, with initial weights from the run's seed."""
    settings = plain(config)
    options = dict(settings["model"])
    name = options.pop("name")
    return build_named_model(
        name,
        len(population.classes),
        size=build_preprocess(settings).crop or population.image_shape[0],
        seed=derive_key(settings["seed"], "weights") % 2**63,
        **options,
    )


def build_items(slot: str, items: Any) -> list[Any]:
    """Return the components of a list of settings, such as callbacks."""
    return [build(slot, description) for description in listed(items)]


def build_run_config(config: Config) -> RunConfig:
    """Return the options of the run, without those of its engine."""
    options = train_options(config)
    return RunConfig(**{one.name: options[one.name] for one in fields(RunConfig) if one.name in options})


def train_options(config: Config) -> dict[str, Any]:
    """Return the options of `train`: those of the run and of its engine."""
    settings = plain(config)
    folders = {option.name for option in FOLDER_OPTIONS}
    run = {option.name: settings[option.name] for option in run_options() if option.name not in folders}
    engine = {name: settings["engine"][name] for name in ENGINE_SETTINGS if name != "threads"}
    trackers = tuple(item["name"] for item in listed(settings.get("trackers")))
    return {**run, **engine, "engine": settings["engine"]["name"], "trackers": trackers}


def listed(items: Any) -> list[dict[str, Any]]:
    """Return the descriptions of a list of components: composed settings have them by key, a run folder as a list."""
    return list(items.values()) if isinstance(items, Mapping) else list(items or ())


def plain(config: Config) -> dict[str, Any]:
    """Return settings as plain data; one that must be given and is not ends in an OmegaConf error."""
    if isinstance(config, DictConfig):
        settings: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        return dict(settings)
    return dict(config)
