"""What is trained, read from the settings of `manyeyes run`: the same on the server and on every client."""

import shlex
from dataclasses import dataclass
from functools import lru_cache

from omegaconf import DictConfig
from torch import nn

from manyeyes.components.client_optimizers import resolve_schedules
from manyeyes.components.samplers import Centralized
from manyeyes.components.weighting import POPULATION, ImportanceReweighting, is_file_name
from manyeyes.config.build import build_algorithm, build_preprocess
from manyeyes.config.compose import compose_config
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineSetup
from manyeyes.engines.select import choose_device
from manyeyes.models.flat import FlatModel, with_seeded_dropout
from manyeyes.privacy.mechanisms import LocalDP


@dataclass(frozen=True, eq=False)
class TrainingSpec:
    """The settings of a run, and the algorithm and preprocessing that they describe."""

    config: DictConfig
    algorithm: Algorithm
    preprocess: Preprocess

    @property
    def needs_class_counts(self) -> bool:
        """Whether p(y) must be computed from the class counts of all clients (FedIR)."""
        weighting = self.algorithm.example_weighting
        return isinstance(weighting, ImportanceReweighting) and weighting.target == POPULATION


@lru_cache(maxsize=32)
def parse_settings(settings: str) -> TrainingSpec:
    """Return what the settings describe; settings that make no sense between separate clients are refused."""
    config = compose_config(shlex.split(settings))
    algorithm = resolve_schedules(build_algorithm(config), config.rounds)
    spec = TrainingSpec(config, algorithm, build_preprocess(config))
    if (reason := unsupported_reason(spec)) is not None:
        raise ValueError(reason)
    return spec


def unsupported_reason(spec: TrainingSpec) -> str | None:
    """Return why a run is impossible on separate clients, or None."""
    algorithm = spec.algorithm
    if spec.config.select_best_on:
        return "select_best_on chooses a model on images of the whole population, which no one has here: leave it out."
    if spec.needs_class_counts and algorithm.privacy is not None:
        fix = "set example_weighting.target to uniform or to numbers"
        return f"example_weighting=importance would compute p(y) from all users' labels, which privacy forbids: {fix}."
    if (reason := _target_reason(spec)) is not None:
        return reason
    if isinstance(algorithm.sampler, Centralized):
        return "sampler=centralized needs all images in one place: choose a federated algorithm."
    if getattr(algorithm.sampler, "replacement", False):
        reason = "may draw a client twice in a round, and here a client trains once"
        return f"sampler.replacement=true {reason}: set sampler.replacement=false."
    if isinstance(algorithm.privacy, LocalDP):
        return "privacy=local is only simulated, by manyeyes run: use privacy=central."
    for slot in ("personal_model", "adaptation"):
        if (component := getattr(algorithm, slot)) is not None:
            return f"{slot}={type(component).__name__} is only simulated, by manyeyes run: set {slot}=none."
    return None


def _target_reason(spec: TrainingSpec) -> str | None:
    """Return why the p(y) of FedIR cannot be had here: splits and files are not those of the clients' machines."""
    weighting, config = spec.algorithm.example_weighting, spec.config
    if not isinstance(weighting, ImportanceReweighting):
        return None
    targets = [(config.get(slot) or {}).get("target") for slot in ("algorithm", "example_weighting")]
    files = [target for target in targets if isinstance(target, str) and is_file_name(target)]
    if target := weighting.split or next(iter(files), None):
        kind = "a split" if weighting.split else "a file"
        reason = f"is {kind}, which separate clients do not have"
        return f"example_weighting.target={target} {reason}: set it to population, uniform or numbers."
    return None


def make_engine_setup(spec: TrainingSpec, module: nn.Module, population: Population) -> EngineSetup:
    """Return what an engine needs to train a module, which is moved to its device."""
    device = choose_device(spec.config.engine.device)
    return EngineSetup(FlatModel(with_seeded_dropout(module.to(device))), population, spec.preprocess, device)
