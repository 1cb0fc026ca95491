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

from manyeyes.components.client_weighting import WeightUniformly
from manyeyes.components.example_weighting import ImportanceReweighting
from manyeyes.config.build import build_model
from manyeyes.core.engine import RoundContext
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population
from manyeyes.data.store.opening import open_population
from manyeyes.engines.evaluation import LocalEvaluator, with_personal_weights
from manyeyes.engines.malloc import retained_memory
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.engines.select import choose_device
from manyeyes.engines.uplink import compress
from manyeyes.flower.client_state import load_state, save_state
from manyeyes.flower.config import FederationConfig, TrainingSpec, parse_settings
from manyeyes.flower.wire import from_record, parse_config, to_record
from manyeyes.metrics import Accuracy
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.training.personalized_evaluation import FixedCohort

TASK = {"round": int, "key": int, "kept": int, "run": str}
NUMBER = "user_number"  # the column of a store that says which number its user has in the whole population


@dataclass(frozen=True, eq=False)
class ClientContext:
    """What a client has: its own examples and the model, ready to train."""

    recipe: TrainingSpec
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
        "name": str(context.node_config.get("name", people.user_name(0))),
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
    own, task = _own(context), parse_config(message.content, TASK | {"bound": float, "target": list})
    flat, algorithm, round = own.flat, own.recipe.algorithm, task["round"]
    if own.train is None:
        raise ValueError("this store holds no photos to train on")
    sent = {"weights": (torch.float32, (flat.num_shared,))}
    if algorithm.correction is not None and algorithm.correction.init(torch.zeros(0)) is not None:
        sent["correction"] = (torch.float32, (flat.num_trainable,))
    arrays = from_record(message.content["arrays"], sent, own.device)

    reweigh = algorithm.example_weighting
    if isinstance(reweigh, ImportanceReweighting):
        reweigh = replace(reweigh, target_distribution=tuple(task["target"]))
    mine = replace(algorithm, sampler=FixedCohort((0,)), client_weighting=WeightUniformly(), example_weighting=reweigh)
    people = replace(own.train, user_ids=np.array([task["key"]]))
    plan = plan_round(mine, people, own.recipe.seed, round, own.recipe.augment.num_uniforms)

    engine = ReferenceEngine(flat, people, own.recipe.augment, own.device)
    personal = None if algorithm.personal_layers is None else engine.personal_mask(algorithm.personal_layers)
    alone = RoundContext(
        algorithm.client_optimizer,
        algorithm.client_optimizer.learning_rate(round),
        algorithm.correction,
        arrays.get("correction"),
        personal,
    )
    kept = {name: t.to(own.device) for name, t in load_state(context, _folder(context, task), task["kept"]).items()}
    with retained_memory(own.device):
        result = engine.train(arrays["weights"], plan, alone, {task["key"]: kept})
    if not result.accepted_K[0]:
        raise ValueError("training gave numbers that are not finite")

    work = replace(alone, clipping_norm=task["bound"], compressor=algorithm.compressor)
    update, norm, owed = compress(result.update_W, plan, plan.clients[0], work, kept)
    keeps = result.client_states.get(task["key"], {}) | owed
    save_state(context, _folder(context, task), task["kept"], round, keeps)
    words = {"round": round, "key": task["key"], "examples": len(people), "loss": float(result.loss_K[0]), "norm": norm}
    records = {"update": to_record(update)}
    if result.uploads_P is not None:
        records["report"] = to_record({"report": result.uploads_P})
    return _reply(message, words, records)


def evaluate(message: Message, context: Context) -> Message:
    """The shared model, with this client's own layers if it keeps some, on this client's test part: counts alone."""
    own, task = _own(context), parse_config(message.content, TASK)
    if own.test is None:
        raise ValueError("this store holds no photos to be tested on")
    weights = from_record(message.content["arrays"], {"weights": (torch.float32, (own.flat.num_shared,))}, own.device)[
        "weights"
    ]
    personal = own.recipe.algorithm.personal_layers
    if personal is not None:
        mask = ReferenceEngine(own.flat, own.test, own.recipe.augment, own.device).personal_mask(personal)
        kept = load_state(context, _folder(context, task), task["kept"])
        weights = with_personal_weights(weights, mask, {name: t.to(own.device) for name, t in kept.items()})
    score = LocalEvaluator(own.flat, own.test, own.recipe.augment, own.device).evaluate_global(weights)
    if not isinstance(score, Accuracy):
        raise ValueError("several labels an example are evaluated at the server alone")
    counts = {"correct": torch.from_numpy(score.correct_C), "count": torch.from_numpy(score.count_C)}
    words = {"round": task["round"], "key": task["key"], "loss": float(score.loss_sum)}
    return _reply(message, words, {"counts": to_record(counts)})


def _reply(message: Message, words: dict[str, Any], records: dict[str, Any] | None = None) -> Message:
    return Message(RecordDict({"about": ConfigRecord(words), **(records or {})}), reply_to=message)


def _needs_target(recipe: TrainingSpec) -> bool:
    reweigh = recipe.algorithm.example_weighting
    return isinstance(reweigh, ImportanceReweighting) and reweigh.target_distribution is None


def _folder(context: Context, task: dict[str, Any]) -> Path | None:
    """Where a client keeps things that outlive its process, if its node was given a folder."""
    place = context.node_config.get("keep")
    return None if place is None else Path(str(place), task["run"], str(task["key"]))


def _own(context: Context) -> ClientContext:
    rules = FederationConfig.from_config(context.run_config)
    return _opened(_store(context, rules), rules.settings)


def _store(context: Context, rules: FederationConfig) -> Path:
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
def _opened(path: Path, words: str) -> ClientContext:
    recipe = parse_settings(words)
    if recipe.config.engine.threads:
        torch.set_num_threads(recipe.config.engine.threads)
    people = open_population(path, recipe.config.data.task or None)
    if len(people.user_ids) != 1:
        raise ValueError(f"{path} holds {len(people.user_ids)} users: a client opens its own store alone")
    device = choose_device(recipe.config.engine.device)
    module = build_model(recipe.config.model, people, recipe.augment, recipe.seed).to(device)
    flat = FlatModel(with_seeded_dropout(module))
    if "split" not in people.columns:
        return ClientContext(recipe, people, people, None, flat, device)
    train, test = (_part(people, name) for name in ("train", str(recipe.config.evaluate_on)))
    return ClientContext(recipe, people, train, test, flat, device)


def _part(people: Population, split: str) -> Population | None:
    there = np.asarray(people.columns["split"]) == split
    return people.filter(there) if there.any() else None
