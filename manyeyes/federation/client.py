"""The client: it opens its own store, plans its own part of a round with the run's seed, and trains it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from manyeyes.conf.build import build_model
from manyeyes.data.opening import open_population
from manyeyes.engine.choice import choose_device
from manyeyes.engine.evaluation import Evaluator, with_own
from manyeyes.engine.memory import kept_memory
from manyeyes.engine.reference import Reference
from manyeyes.engine.sending import pack
from manyeyes.federation.keeping import recall, remember
from manyeyes.federation.rules import Recipe, Rules, read_recipe
from manyeyes.federation.wire import about, from_record, to_record
from manyeyes.metrics import Accuracy
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.parts.reweighing import ImportanceRatio
from manyeyes.parts.weighing import Equally
from manyeyes.population import Population
from manyeyes.round import plan_round
from manyeyes.run.adapting import Chosen
from manyeyes.work import Work

TASK = {"round": int, "key": int, "kept": int, "run": str}
NUMBER = "user_number"  # the column of a store that says which number its user has in the whole population


@dataclass(frozen=True, eq=False)
class Own:
    """What a client has: its own examples and the model, ready to train."""

    recipe: Recipe
    population: Population  # all of the store
    train: Population | None
    test: Population | None
    flat: FlatModel
    device: torch.device


def build_client() -> ClientApp:
    """The Flower app of a client."""
    app = ClientApp()
    app.query()(query)
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def query(message: Message, context: Context) -> Message:
    """Who this client is and how much it holds; how often each class only where the algorithm asks (FedIR)."""
    own = _own(context)
    people = own.population
    number = people.columns.get(NUMBER)
    words: dict[str, Any] = {
        "name": str(context.node_config.get("name", people.name(0))),
        "number": int(np.asarray(number)[0]) if number is not None else -1,
        "examples": 0 if own.train is None else len(own.train),
        "tests": 0 if own.test is None else len(own.test),
        "classes": list(people.classes),
        "multi": int(people.labels.multi),
        "height": people.image_shape[0],
        "width": people.image_shape[1],
    }
    if _needs_target(own.recipe) and own.train is not None:
        words["counts"] = own.train.class_counts.tolist()
    return _reply(message, words)


def train(message: Message, context: Context) -> Message:
    """This client's part of a round; its answer is its packed update, and what it keeps stays here."""
    own, task = _own(context), about(message.content, TASK | {"bound": float, "target": list})
    flat, algorithm, round = own.flat, own.recipe.algorithm, task["round"]
    if own.train is None:
        raise ValueError("this store holds no photos to train on")
    sent = {"weights": (torch.float32, (flat.size,))}
    if algorithm.correct is not None and algorithm.correct.start(torch.zeros(0)) is not None:
        sent["correction"] = (torch.float32, (flat.trained,))
    arrays = from_record(message.content["arrays"], sent, own.device)

    reweigh = algorithm.reweigh
    if isinstance(reweigh, ImportanceRatio):
        reweigh = replace(reweigh, target=tuple(task["target"]))
    mine = replace(algorithm, cohort=Chosen((0,)), weigh=Equally(), reweigh=reweigh)
    people = replace(own.train, users=np.array([task["key"]]))
    plan = plan_round(mine, people, own.recipe.seed, round, own.recipe.augment.dice)

    engine = Reference(flat, people, own.recipe.augment, own.device)
    personal = None if algorithm.personal is None else engine.personal(algorithm.personal)
    alone = Work(algorithm.local, algorithm.local.rate(round), algorithm.correct, arrays.get("correction"), personal)
    kept = {name: t.to(own.device) for name, t in recall(context, _folder(context, task), task["kept"]).items()}
    with kept_memory(own.device):
        result = engine.train(arrays["weights"], plan, alone, {task["key"]: kept})
    if not result.kept_K[0]:
        raise ValueError("training gave numbers that are not finite")

    work = replace(alone, bound=task["bound"], compress=algorithm.compress)
    update, norm, owed = pack(result.update_W, plan, plan.clients[0], work, kept)
    keeps = result.keeps.get(task["key"], {}) | owed
    remember(context, _folder(context, task), task["kept"], round, keeps)
    words = {"round": round, "key": task["key"], "examples": len(people), "loss": float(result.loss_K[0]), "norm": norm}
    records = {"update": to_record(update)}
    if result.reports_P is not None:
        records["report"] = to_record({"report": result.reports_P})
    return _reply(message, words, records)


def evaluate(message: Message, context: Context) -> Message:
    """The shared model, with this client's own layers if it keeps some, on this client's test part: counts alone."""
    own, task = _own(context), about(message.content, TASK)
    if own.test is None:
        raise ValueError("this store holds no photos to be tested on")
    weights = from_record(message.content["arrays"], {"weights": (torch.float32, (own.flat.size,))}, own.device)[
        "weights"
    ]
    personal = own.recipe.algorithm.personal
    if personal is not None:
        mask = Reference(own.flat, own.test, own.recipe.augment, own.device).personal(personal)
        kept = recall(context, _folder(context, task), task["kept"])
        weights = with_own(weights, mask, {name: t.to(own.device) for name, t in kept.items()})
    score = Evaluator(own.flat, own.test, own.recipe.augment, own.device).shared(weights)
    if not isinstance(score, Accuracy):
        raise ValueError("several labels an example are evaluated at the server alone")
    counts = {"correct": torch.from_numpy(score.correct_C), "count": torch.from_numpy(score.count_C)}
    words = {"round": task["round"], "key": task["key"], "loss": float(score.loss_sum)}
    return _reply(message, words, {"counts": to_record(counts)})


def _reply(message: Message, words: dict[str, Any], records: dict[str, Any] | None = None) -> Message:
    return Message(RecordDict({"about": ConfigRecord(words), **(records or {})}), reply_to=message)


def _needs_target(recipe: Recipe) -> bool:
    reweigh = recipe.algorithm.reweigh
    return isinstance(reweigh, ImportanceRatio) and reweigh.target is None


def _folder(context: Context, task: dict[str, Any]) -> Path | None:
    """Where a client keeps things that outlive its process, if its node was given a folder."""
    place = context.node_config.get("keep")
    return None if place is None else Path(str(place), task["run"], str(task["key"]))


def _own(context: Context) -> Own:
    rules = Rules.of(context.run_config)
    return _opened(_store(context, rules), rules.settings)


def _store(context: Context, rules: Rules) -> Path:
    """The one store that this client opens."""
    given = context.node_config.get("store")
    if given is not None:
        return Path(str(given))
    if not rules.stores or "partition-id" not in context.node_config:
        raise ValueError("this node has no store: start it with --node-config 'store=\"FOLDER\"'")
    found = sorted(path.parent for path in Path(rules.stores).glob("*/meta.json"))
    number = int(context.node_config["partition-id"])
    if number >= len(found):
        raise ValueError(f"{rules.stores} holds {len(found)} stores: there is none for node {number}")
    return found[number]


@lru_cache(maxsize=8)
def _opened(path: Path, words: str) -> Own:
    recipe = read_recipe(words)
    if recipe.config.engine.threads:
        torch.set_num_threads(recipe.config.engine.threads)
    people = open_population(path, recipe.config.data.task or None)
    if len(people.users) != 1:
        raise ValueError(f"{path} holds {len(people.users)} users: a client opens its own store alone")
    device = choose_device(recipe.config.engine.device)
    module = build_model(recipe.config.model, people, recipe.augment, recipe.seed).to(device)
    flat = FlatModel(with_seeded_dropout(module))
    if "split" not in people.columns:
        return Own(recipe, people, people, None, flat, device)
    train, test = (_part(people, name) for name in ("train", str(recipe.config.evaluate_on)))
    return Own(recipe, people, train, test, flat, device)


def _part(people: Population, split: str) -> Population | None:
    there = np.asarray(people.columns["split"]) == split
    return people.where(there) if there.any() else None
