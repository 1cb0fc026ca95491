"""Flower: its Ray simulation with one actor per core (on a GPU, actors that share it), FedAvg or FedAdam."""

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

from benchmarks.rounds.case import BenchCase, RunnerResult, prepare
from benchmarks.rounds.plain import DeviceData, local_optimizer, train_client
from benchmarks.rounds.workloads import Workload
from manyeyes.components import AdaptiveServer

MAX_GPU_ACTORS = 8


def run(case: BenchCase, workload: Workload) -> RunnerResult:
    rounds, module = case.warmup + case.rounds, workload.module()
    times: list[float] = []
    images: list[int] = []

    def record_time(round: int, arrays: ArrayRecord) -> None:
        times.append(time.perf_counter())

    def count_images(replies: list[Any], key: str) -> MetricRecord:
        images.append(workload.epochs * sum(int(reply["metrics"][key]) for reply in replies))
        return MetricRecord()

    def serve(grid: Grid, context: Context) -> None:
        result = make_strategy(workload, count_images).start(
            grid, ArrayRecord(module.state_dict()), num_rounds=rounds, evaluate_fn=record_time
        )
        module.load_state_dict(result.arrays.to_torch_state_dict())

    def train(message: Message, context: Context) -> Message:
        data, model = load_once(case, workload)
        received: Any = message.content["arrays"]
        model.load_state_dict(received.to_torch_state_dict())
        rows, targets = data.user(int(context.node_config["partition-id"]))
        train_client(workload, model, local_optimizer(workload, model.parameters()), data.images, rows, targets, case)
        arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": len(rows)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    cores = os.cpu_count() or 1
    gpu_fraction = 1 / min(MAX_GPU_ACTORS, cores, workload.cohort) if case.device == "cuda" else 0.0
    resources: dict[str, Any] = {"num_cpus": cores * gpu_fraction if gpu_fraction else 1, "num_gpus": gpu_fraction}
    run_simulation(server, client, workload.users, backend_config={"client_resources": resources})
    if len(images) < rounds or min(images) < workload.cohort:  # Flower counts a round whose clients failed
        raise RuntimeError("Flower's clients failed: see its log on standard error")
    return RunnerResult([b - a for a, b in pairwise(times)], images, module)


def make_strategy(workload: Workload, count_images: Any) -> Any:
    options: dict[str, Any] = {
        "fraction_train": 0.5 / workload.users,
        "fraction_evaluate": 0.0,
        "min_train_nodes": workload.cohort,
        "min_available_nodes": workload.users,
        "train_metrics_aggr_fn": count_images,
    }
    server = workload.algorithm.server_optimizer
    if isinstance(server, AdaptiveServer):
        return FedAdam(**options, eta=server.lr, beta_1=server.beta1, beta_2=server.beta2, tau=server.tau)
    return FedAvg(**options)


@lru_cache(maxsize=1)
def load_once(case: BenchCase, workload: Workload) -> tuple[DeviceData, nn.Module]:
    """Return an actor's data and model, which it loads once."""
    if case.device == "cpu":
        torch.set_num_threads(1)
    device = prepare(case)
    return DeviceData.from_population(workload.population(), device), workload.module().to(device).train()
