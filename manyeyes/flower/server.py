"""The server: it gathers its clients, then plays the rounds of `manyeyes run` with the grid as its engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from omegaconf import OmegaConf

from manyeyes.components.example_weighting import ImportanceReweighting
from manyeyes.config.build import build_model, run_words
from manyeyes.core.rng import derive_key
from manyeyes.data.store.opening import open_population
from manyeyes.engines.distributed import DistInfo
from manyeyes.engines.evaluation import Evaluator, LocalEvaluator
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.engines.select import choose_device
from manyeyes.flower.config import FederationConfig, TrainingSpec, parse_settings
from manyeyes.flower.engine import GridEngine
from manyeyes.flower.evaluation import GridEvaluator
from manyeyes.flower.members import Members
from manyeyes.flower.planning import Planner
from manyeyes.flower.registry import ClientRegistry
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.training.config import RunConfig
from manyeyes.training.loop import TrainingSetup
from manyeyes.training.result import Result
from manyeyes.training.train import limit_to_budget, run_training


def build_server() -> ServerApp:
    """The Flower app of the server."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        result = serve(grid, FederationConfig.from_config(context.run_config))
        shown = ", ".join(f"{name} {value:.4f}" for name, value in result.final.items() if name in ("accuracy", "loss"))
        print(f"{result.folder}: {shown or 'done'}", flush=True)

    return app


def serve(grid: Grid, rules: FederationConfig) -> Result:
    """A whole run: its clients, its rounds, its folder."""
    recipe = parse_settings(rules.settings)
    config, algorithm = recipe.config, recipe.algorithm
    asks_counts = (
        isinstance(algorithm.example_weighting, ImportanceReweighting)
        and algorithm.example_weighting.target_distribution is None
    )
    if asks_counts and algorithm.privacy is not None:
        raise ValueError("FedIR would read p(y) off all users: give the target distribution")
    folder = Path(rules.resume or rules.folder)
    roll = ClientRegistry(grid, rules, asks_counts)
    if rules.resume:
        members = roll.members = _members(folder)
    else:
        members = roll.wait_for_clients(rules.clients or getattr(algorithm.sampler, "cohort_size", 1))
    population = members.population()
    if isinstance(algorithm.example_weighting, ImportanceReweighting):
        target = algorithm.example_weighting.target_distribution or members.target
        algorithm = replace(
            algorithm, example_weighting=replace(algorithm.example_weighting, target_distribution=target)
        )
    else:
        target = ()
    algorithm.validate(population)
    recipe.augment.check(*population.image_shape[:2])
    algorithm, how = limit_to_budget(algorithm, population, RunConfig(**run_words(recipe.config)))

    device = choose_device(config.engine.device)
    module = build_model(config.model, population, recipe.augment, recipe.seed).to(device)
    flat = FlatModel(with_seeded_dropout(module))
    reference = ReferenceEngine(flat, population, recipe.augment, device)
    name = f"{derive_key(recipe.seed, repr(algorithm)):032x}"  # under which clients keep things, so that two runs do not mix
    engine = GridEngine(grid, roll, rules, reference, population, name, target)
    if algorithm.personal_layers is not None:
        engine.personal_mask(algorithm.personal_layers)
    training = TrainingSetup(
        algorithm=algorithm,
        population=population,
        engine=engine,
        evaluator=_judge(rules, recipe, members, engine, flat),
        augment=recipe.augment,
        config=how,
        dist=DistInfo(),
        prefetcher=Planner(algorithm, population, roll, recipe.seed),
    )
    settings = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    about = settings | {"federation": vars(rules) | {"members": members.describe()}}
    return run_training(training, module, flat, device, folder=folder, resume=bool(rules.resume), metadata=about)


def _judge(
    rules: FederationConfig, recipe: TrainingSpec, members: Members, engine: GridEngine, flat: FlatModel
) -> Evaluator | None:
    """Who evaluates: the server on a store of its own, or the clients; with privacy they tell nothing of theirs."""
    config, device = recipe.config, engine.reference.device
    if rules.test:
        people = open_population(Path(rules.test), config.data.task or None)
        if people.classes != members.classes:
            raise ValueError(f"the classes of {rules.test} are not those of the clients: give a store of the same task")
        tested = people.split(config.evaluate_on) if "split" in people.columns else people
        return LocalEvaluator(flat, tested, recipe.augment, device)
    if members.multi or recipe.algorithm.privacy is not None or not any(m.tests for m in members.all):
        return None
    return GridEvaluator(engine, members.population(tests=True))


def _members(folder: Path) -> Members:
    """Those of the run in the folder."""
    try:
        words = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return Members.from_infos(words["federation"]["members"])
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        raise ValueError(f"{folder} holds no federated run to continue: give the folder of one") from None
