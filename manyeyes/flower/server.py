"""The server app: waits for its clients, then runs the rounds of `manyeyes run` with the grid as its engine."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from omegaconf import OmegaConf

from manyeyes.components.weighting import ImportanceReweighting, WeightUniformly
from manyeyes.config.build import build_model, build_run_config
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.rng import derive_key
from manyeyes.data.store.reader import open_population
from manyeyes.engines.base import retained_memory
from manyeyes.engines.evaluation import Evaluator, LocalEvaluator
from manyeyes.flower.app import FederationConfig
from manyeyes.flower.engine import GridEngine
from manyeyes.flower.evaluation import GridEvaluator
from manyeyes.flower.members import Members
from manyeyes.flower.protection import describe_outsized, describe_protection
from manyeyes.flower.registry import ClientRegistry, ConnectedPlanSource
from manyeyes.flower.training_spec import TrainingSpec, make_engine_setup, parse_settings
from manyeyes.training.result import Result
from manyeyes.training.run_checksums import check_text
from manyeyes.training.run_files import CONFIG_FILE, read_config
from manyeyes.training.setup import TrainingSetup, limit_to_budget
from manyeyes.training.train import run_training

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve a run, and print its final metrics."""
    result = serve(grid, FederationConfig.from_config(context.run_config))
    print(f"{result.folder}: {result.describe() or 'finished'}", flush=True)


def serve(grid: Grid, config: FederationConfig) -> Result:
    """Wait for the clients and run all rounds; everything is written to the run folder."""
    spec = parse_settings(config.settings)
    folder = Path(config.resume or config.folder)
    registry = ClientRegistry(grid, config, spec.needs_class_counts)
    _gather_members(registry, spec, folder)
    members, population = registry.members, registry.members.population()
    weighting = spec.algorithm.example_weighting
    target_distribution: tuple[float, ...] = ()
    if isinstance(weighting, ImportanceReweighting):
        target_distribution = members.target_distribution
        if not spec.needs_class_counts:
            num_classes = len(members.data.classes)
            target_distribution = tuple(weighting.target_distribution(np.ones(num_classes, np.int64)).tolist())
        weighting = replace(weighting, target=target_distribution)
    algorithm = replace(spec.algorithm, example_weighting=weighting)
    algorithm.validate(population)
    spec.preprocess.check(*population.image_shape[:2])
    _print_protection(algorithm, members, config)
    algorithm, run_config = limit_to_budget(algorithm, population, build_run_config(spec.config))

    module = build_model(spec.config, population)
    engine_setup = make_engine_setup(spec, module, population)
    run_id = f"{derive_key(spec.config.seed, repr(algorithm)):032x}"  # so that runs do not share client states
    engine = GridEngine(engine_setup, registry, run_id, target_distribution)
    if algorithm.personal_layers is not None:
        engine.personal_mask(algorithm.personal_layers)  # refuses patterns that match no layer, before round 1
    setup = TrainingSetup(
        algorithm=algorithm,
        population=population,
        engine=engine,
        evaluator=_make_evaluator(spec, engine),
        preprocess=spec.preprocess,
        config=run_config,
        module=module,
        model=engine_setup.model,
        device=engine_setup.device,
        caveats=population.caveats,
        plan_source=ConnectedPlanSource(algorithm, population, registry, spec.config.seed),
    )
    settings = cast(dict[str, Any], OmegaConf.to_container(spec.config, resolve=True))
    metadata = settings | {"federation": vars(config) | {"members": asdict(members)}}
    with retained_memory(setup.device):
        return run_training(setup, folder, metadata, bool(config.resume))


def _print_protection(algorithm: Algorithm, members: Members, config: FederationConfig) -> None:
    """Say what bounds the influence of a client, and which clients report unusually many images."""
    print(describe_protection(algorithm, config), flush=True)
    if algorithm.privacy is None and not isinstance(algorithm.client_weighting, WeightUniformly):
        names, counts = zip(*((member.name, member.num_examples) for member in members.all), strict=True)
        if outsized := describe_outsized(names, counts, config):
            print(outsized, file=sys.stderr, flush=True)


def _gather_members(registry: ClientRegistry, spec: TrainingSpec, folder: Path) -> None:
    """Read the members of a run that is resumed, or else wait for clients to join."""
    if not registry.config.resume:
        cohort_size = getattr(spec.algorithm.sampler, "cohort_size", 1)
        return registry.wait_for_clients(registry.config.num_clients or cohort_size)
    if (folder / CONFIG_FILE).exists():
        check_text(folder, CONFIG_FILE, (folder / CONFIG_FILE).read_bytes())
    settings = read_config(folder)
    try:
        registry.members = Members.from_dict(settings["federation"]["members"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{folder} has no federated run of this version: set resume to the folder of one.") from None


def _make_evaluator(spec: TrainingSpec, engine: GridEngine) -> Evaluator | None:
    """Return an evaluator on the server's own store, or one that asks the clients; with privacy they are not asked."""
    config, members = engine.config, engine.registry.members
    if config.test_store:
        population = open_population(Path(config.test_store), spec.config.data.task or None)
        if population.classes != members.data.classes:
            store = f"test_store={config.test_store}"
            raise ValueError(f"The classes of {store} are not those of the clients: give a store of the same task.")
        if "split" in population.columns:
            population = population.split(spec.config.eval_split)
        return LocalEvaluator(engine.setup.model, population, spec.preprocess, engine.setup.device)
    has_tests = any(member.num_test_examples for member in members.all)
    if members.data.multi or spec.algorithm.privacy is not None or not has_tests:
        return None
    return GridEvaluator(engine, members.population(test=True))
