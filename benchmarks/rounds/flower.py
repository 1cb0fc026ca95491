"""Flower: its Ray simulation with one actor a core (on a GPU, actors that share it), FedAvg or FedAdam."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from itertools import pairwise
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.rounds.case import Case, Played, prepare
from benchmarks.rounds.plain import Held, local_optimizer, train_client
from benchmarks.rounds.works import Workload
from manyeyes.components import AdaptiveServer

ACTORS = 8  # at most, on a GPU


def play(case: Case, work: Workload) -> Played:
    rounds, module = case.warmup + case.rounds, work.module()
    times: list[float] = []
    images: list[int] = []

    def looked(round: int, arrays: ArrayRecord) -> None:
        times.append(time.perf_counter())

    def summed(replies: list[Any], key: str) -> MetricRecord:
        images.append(work.epochs * sum(int(reply["metrics"][key]) for reply in replies))
        return MetricRecord()

    def serve(grid: Grid, context: Context) -> None:
        result = strategy(work, summed).start(
            grid, ArrayRecord(module.state_dict()), num_rounds=rounds, evaluate_fn=looked
        )
        module.load_state_dict(result.arrays.to_torch_state_dict())

    def train(message: Message, context: Context) -> Message:
        held, model = kept(case, work)
        arrived: Any = message.content["arrays"]
        model.load_state_dict(arrived.to_torch_state_dict())
        rows, targets = held.user(int(context.node_config["partition-id"]))
        train_client(work, model, local_optimizer(work, model.parameters()), held.images, rows, targets, case)
        arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(rows)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    cores = os.cpu_count() or 1
    share = 1 / min(ACTORS, cores, work.cohort) if case.device == "cuda" else 0.0
    resources: dict[str, Any] = {"num_cpus": cores * share if share else 1, "num_gpus": share}
    run_simulation(server, client, work.users, backend_config={"client_resources": resources})
    if len(images) < rounds or min(images) < work.cohort:  # a round whose clients failed counts as done
        raise RuntimeError("Flower's clients failed: see its log on standard error")
    return Played([b - a for a, b in pairwise(times)], images, module)


def strategy(work: Workload, summed: Any) -> Any:
    how: dict[str, Any] = {
        "fraction_train": 0.5 / work.users,
        "fraction_evaluate": 0.0,
        "min_train_nodes": work.cohort,
        "min_available_nodes": work.users,
        "train_metrics_aggr_fn": summed,
    }
    server = work.algorithm.server_optimizer
    if isinstance(server, AdaptiveServer):
        return FedAdam(**how, eta=server.lr, beta_1=server.beta1, beta_2=server.beta2, tau=server.tau)
    return FedAvg(**how)


@lru_cache(maxsize=1)
def kept(case: Case, work: Workload) -> tuple[Held, nn.Module]:
    """What an actor makes once and keeps."""
    if case.device == "cpu":
        torch.set_num_threads(1)
    device = prepare(case)
    return Held.of(work.population(), device), work.module().to(device).train()
