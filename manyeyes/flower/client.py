"""The client app: opens its own store, plans its part of a round with the run's seed, and trains it."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from manyeyes.components.weighting import ImportanceReweighting, WeightUniformly
from manyeyes.config.build import build_model
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import plan_round
from manyeyes.core.population import Population
from manyeyes.core.round import make_context
from manyeyes.core.state import ServerState
from manyeyes.core.uplink import compress
from manyeyes.data.store.reader import open_population
from manyeyes.engines.base import EngineSetup, retained_memory
from manyeyes.engines.evaluation import LocalEvaluator, with_personal_weights
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.flower.app import FederationConfig
from manyeyes.flower.client_state import load_state, save_state
from manyeyes.flower.messages import CONFIG, from_record, parse_config, to_record
from manyeyes.flower.training_spec import TrainingSpec, make_engine_setup, parse_settings
from manyeyes.metrics import Accuracy
from manyeyes.training.scoring import FixedCohort

TASK_TYPES = {"round": int, "client_id": int, "last_round": int, "run": str}
TRAIN_TASK_TYPES = TASK_TYPES | {"clipping_norm": float, "target_distribution": list}
USER_ID_COLUMN = "federation_user_id"  # of a store: the user's id in the population that the store was split from


@dataclass(frozen=True, eq=False)
class ClientContext:
    """A client's examples and model, ready to train."""

    spec: TrainingSpec
    setup: EngineSetup  # its population has all examples of the store
    train: Population  # perhaps without examples
    test: Population

    def read_tensors(self, message: Message) -> dict[str, Tensor]:
        """Return what the server sent: weights [W], and the correction's server state [P] if it is sent."""
        model, arrays = self.setup.model, message.content["arrays"]
        specs = {"weights": (torch.float32, (model.num_shared,))}
        if isinstance(arrays, ArrayRecord) and "correction" in arrays:
            specs["correction"] = (torch.float32, (model.num_trainable,))
        return from_record(arrays, specs, self.setup.device)


app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Report the client's name and number of images; class counts only if the algorithm needs them (FedIR)."""
    client = _open_client(context)
    population = client.setup.population
    user_id = population.columns.get(USER_ID_COLUMN)
    info: dict[str, Any] = {
        "name": str(context.node_config.get("name", population.user_name(0))),
        "user_id": int(np.asarray(user_id)[0]) if user_id is not None else -1,
        "num_examples": len(client.train),
        "num_test_examples": len(client.test),
        "classes": list(population.classes),
        "multi": int(population.labels.multi),
        "height": population.image_shape[0],
        "width": population.image_shape[1],
    }
    if client.spec.needs_class_counts:
        info["class_counts"] = client.train.class_counts.tolist()
    return _reply(message, info)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the client's part of a round; the reply has its compressed update, and its new state stays here."""
    client, task = _open_client(context), parse_config(message.content, TRAIN_TASK_TYPES)
    spec, device, tensors = client.spec, client.setup.device, client.read_tensors(message)
    client_id, round = task["client_id"], task["round"]
    if not len(client.train):
        raise ValueError("the store of this client has no training images")
    population = replace(client.train, user_ids=np.array([client_id]))
    algorithm = _local_algorithm(spec.algorithm, task)
    plan = plan_round(algorithm, population, spec.config.seed, round, spec.preprocess.num_uniforms)

    engine = ReferenceEngine(replace(client.setup, population=population))
    state = load_state(context, task, device)
    training = replace(spec.algorithm, privacy=None, compressor=None, aggregator=None)  # which come after it
    server_state = ServerState(round, tensors["weights"], {}, tensors.get("correction"))
    round_context = make_context(training, server_state, engine)
    with retained_memory(device):
        result = engine.train(tensors["weights"], plan, round_context, {client_id: state})
    if not result.accepted_K[0]:
        raise ValueError("training produced values that are not finite")

    uplink = replace(round_context, clipping_norm=task["clipping_norm"], compressor=spec.algorithm.compressor)
    arrays, norm, residual = compress(result.update_W, plan, plan.clients[0], uplink, state)
    new_state = result.client_states.get(client_id, {}) | residual
    save_state(context, task, new_state)
    values = {"round": round, "client_id": client_id, "num_examples": len(population)}
    records = {"update": to_record(arrays)}
    if result.uploads_P is not None:
        records["upload"] = to_record({"upload": result.uploads_P})
    return _reply(message, values | {"loss": float(result.loss_K[0]), "norm": norm}, records)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Count the correct predictions of the shared model, with this client's own layers, on its test images."""
    client, task = _open_client(context), parse_config(message.content, TASK_TYPES)
    weights, population = client.read_tensors(message)["weights"], client.test
    if not len(population):
        raise ValueError("the store of this client has no test images")
    setup, personal_layers = client.setup, client.spec.algorithm.personal_layers
    if personal_layers is not None:
        mask = ReferenceEngine(setup).personal_mask(personal_layers)
        weights = with_personal_weights(weights, mask, load_state(context, task, setup.device))
    score = LocalEvaluator(setup.model, population, setup.preprocess, setup.device).evaluate_global(weights)
    if not isinstance(score, Accuracy):
        raise ValueError("several labels per image can only be evaluated by the server: set test_store")
    counts = {"correct": torch.from_numpy(score.correct_C), "count": torch.from_numpy(score.count_C)}
    values = {"round": task["round"], "client_id": task["client_id"], "loss": float(score.loss_sum)}
    return _reply(message, values, {"counts": to_record(counts)})


def _reply(message: Message, values: dict[str, Any], records: dict[str, Any] | None = None) -> Message:
    return Message(RecordDict({CONFIG: ConfigRecord(values), **(records or {})}), reply_to=message)


def _local_algorithm(algorithm: Algorithm, task: dict[str, Any]) -> Algorithm:
    """Return the algorithm for a population of this client alone, with the p(y) that the server sent."""
    weighting = algorithm.example_weighting
    if isinstance(weighting, ImportanceReweighting):
        weighting = replace(weighting, target=tuple(task["target_distribution"]))
    sampler, uniform = FixedCohort((0,)), WeightUniformly()
    return replace(algorithm, sampler=sampler, client_weighting=uniform, example_weighting=weighting)


def _open_client(context: Context) -> ClientContext:
    config = FederationConfig.from_config(context.run_config)
    return _load_client(store_path(context, config), config.settings)


def store_path(context: Context, config: FederationConfig) -> Path:
    store = context.node_config.get("store")
    if store is not None:
        return Path(str(store))
    if not config.stores or "partition-id" not in context.node_config:
        raise ValueError("This node has no store: start it with --node-config 'store=\"FOLDER\"'.")
    stores = sorted(path.parent for path in Path(config.stores).glob("*/meta.json"))
    index = int(context.node_config["partition-id"])
    if index >= len(stores):
        raise ValueError(f"{config.stores} has {len(stores)} stores, and none for node {index}: start fewer nodes.")
    return stores[index]


@lru_cache(maxsize=16)
def _load_client(path: Path, settings: str) -> ClientContext:
    spec = parse_settings(settings)
    if spec.config.engine.threads:
        torch.set_num_threads(spec.config.engine.threads)
    population = open_population(path, spec.config.data.task or None)
    if len(population.user_ids) != 1:
        raise ValueError(f"{path} has {len(population.user_ids)} users, and a client has one: split it by user first.")
    setup = make_engine_setup(spec, build_model(spec.config, population), population)
    split = np.asarray(population.columns.get("split", np.full(len(population), "train")))
    train, test = (population.filter(split == name) for name in ("train", spec.config.eval_split))
    return ClientContext(spec, setup, train, test)
