"""The server: it gathers its clients, then plays the rounds of `manyeyes run` with the grid as its engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from omegaconf import OmegaConf

from manyeyes.chance import key
from manyeyes.conf.build import build_model, run_words
from manyeyes.data.opening import open_population
from manyeyes.engine.choice import choose_device
from manyeyes.engine.distributed import World
from manyeyes.engine.evaluation import Evaluator, Judge
from manyeyes.engine.reference import Reference
from manyeyes.federation.engine import GridEngine
from manyeyes.federation.evaluation import GridEvaluator
from manyeyes.federation.members import Members
from manyeyes.federation.planning import Planner
from manyeyes.federation.roll import Roll
from manyeyes.federation.rules import Recipe, Rules, read_recipe
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.parts.reweighing import ImportanceRatio
from manyeyes.run.playing import Training
from manyeyes.run.result import Result
from manyeyes.run.settings import Settings
from manyeyes.run.training import carry_out, within_budget


def build_server() -> ServerApp:
    """The Flower app of the server."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        result = serve(grid, Rules.of(context.run_config))
        shown = ", ".join(f"{name} {value:.4f}" for name, value in result.final.items() if name in ("accuracy", "loss"))
        print(f"{result.folder}: {shown or 'done'}", flush=True)

    return app


def serve(grid: Grid, rules: Rules) -> Result:
    """A whole run: its clients, its rounds, its folder."""
    recipe = read_recipe(rules.settings)
    config, algorithm = recipe.config, recipe.algorithm
    asks_counts = isinstance(algorithm.reweigh, ImportanceRatio) and algorithm.reweigh.target is None
    if asks_counts and algorithm.privacy is not None:
        raise ValueError("FedIR would read p(y) off all users: give the target distribution")
    folder = Path(rules.resume or rules.folder)
    roll = Roll(grid, rules, asks_counts)
    if rules.resume:
        members = roll.members = _members(folder)
    else:
        members = roll.gather(rules.clients or getattr(algorithm.cohort, "clients", 1))
    population = members.population()
    if isinstance(algorithm.reweigh, ImportanceRatio):
        target = algorithm.reweigh.target or members.target
        algorithm = replace(algorithm, reweigh=replace(algorithm.reweigh, target=target))
    else:
        target = ()
    algorithm.check(population)
    recipe.augment.check(*population.image_shape[:2])
    algorithm, how = within_budget(algorithm, population, Settings(**run_words(recipe.config)))

    device = choose_device(config.engine.device)
    module = build_model(config.model, population, recipe.augment, recipe.seed).to(device)
    flat = FlatModel(with_seeded_dropout(module))
    reference = Reference(flat, population, recipe.augment, device)
    name = f"{key(recipe.seed, repr(algorithm)):032x}"  # under which clients keep things, so that two runs do not mix
    engine = GridEngine(grid, roll, rules, reference, population, name, target)
    if algorithm.personal is not None:
        engine.personal(algorithm.personal)
    training = Training(
        algorithm=algorithm,
        population=population,
        engine=engine,
        evaluator=_judge(rules, recipe, members, engine, flat),
        augment=recipe.augment,
        settings=how,
        here=World(),
        ahead=Planner(algorithm, population, roll, recipe.seed),
    )
    settings = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    about = settings | {"federation": vars(rules) | {"members": members.describe()}}
    return carry_out(training, module, flat, device, folder=folder, resume=bool(rules.resume), about=about)


def _judge(rules: Rules, recipe: Recipe, members: Members, engine: GridEngine, flat: FlatModel) -> Judge | None:
    """Who evaluates: the server on a store of its own, or the clients; with privacy they tell nothing of theirs."""
    config, device = recipe.config, engine.reference.device
    if rules.test:
        people = open_population(Path(rules.test), config.data.task or None)
        if people.classes != members.classes:
            raise ValueError(f"the classes of {rules.test} are not those of the clients: give a store of the same task")
        tested = people.split(config.evaluate_on) if "split" in people.columns else people
        return Evaluator(flat, tested, recipe.augment, device)
    if members.multi or recipe.algorithm.privacy is not None or not any(m.tests for m in members.all):
        return None
    return GridEvaluator(engine, members.population(tests=True))


def _members(folder: Path) -> Members:
    """Those of the run in the folder."""
    try:
        words = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return Members.of(words["federation"]["members"])
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        raise ValueError(f"{folder} holds no federated run to continue: give the folder of one") from None
