"""A plain PyTorch loop as a researcher would write it: one client after another, images on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rounds.case import BenchCase, RunnerResult, prepare, time_rounds
from benchmarks.rounds.workloads import Workload
from manyeyes.components import AdaptiveServer, ServerSGD
from manyeyes.core.population import Ints, Population


@dataclass(frozen=True, eq=False)
class DeviceData:
    """The data of all users on the device; user u has the examples `offsets[u]` to `offsets[u + 1]`."""

    images: Tensor  # uint8 [N, H, W, 3]
    rows: Tensor  # the image of each example
    targets: Tensor
    offsets: Ints

    @staticmethod
    def from_population(population: Population, device: torch.device) -> DeviceData:
        all_targets = population.labels.targets(np.arange(len(population)))
        images, rows, targets = (
            torch.from_numpy(array).to(device) for array in (population.images, population.image_indices, all_targets)
        )
        return DeviceData(images, rows, targets, population.offsets)

    def user(self, user: int) -> tuple[Tensor, Tensor]:
        """Return the image rows and the targets of a user."""
        examples = slice(self.offsets[user], self.offsets[user + 1])
        return self.rows[examples], self.targets[examples]


def run(case: BenchCase, workload: Workload) -> RunnerResult:
    device = prepare(case)
    data = DeviceData.from_population(workload.population(), device)
    model = workload.module().to(device).train()
    if workload.pooled:
        optimizer = local_optimizer(workload, model.parameters())
        all_examples = (data.rows, data.targets)
        return time_rounds(
            case, model, lambda: train_client(workload, model, optimizer, data.images, *all_examples, case)
        )

    client = copy.deepcopy(model)
    server = server_optimizer(workload, model.parameters())
    rng = np.random.default_rng(0)

    def run_round() -> int:
        total = [torch.zeros_like(p) for p in model.parameters()]
        num_examples = 0
        for user in rng.choice(workload.users, workload.cohort, replace=False):
            client.load_state_dict(model.state_dict())
            rows, targets = data.user(user)
            train_client(
                workload, client, local_optimizer(workload, client.parameters()), data.images, rows, targets, case
            )
            with torch.no_grad():
                for update_sum, before, after in zip(total, model.parameters(), client.parameters(), strict=True):
                    update_sum += len(rows) * (before - after)
            num_examples += len(rows)
        for parameter, update_sum in zip(model.parameters(), total, strict=True):
            parameter.grad = update_sum / num_examples
        server.step()
        return num_examples * workload.epochs

    return time_rounds(case, model, run_round)


def train_client(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    rows: Tensor,
    targets: Tensor,
    case: BenchCase,
) -> int:
    """Train on a client's examples, and return how many they were, counted once per epoch."""
    for _ in range(workload.epochs):
        for batch in torch.randperm(len(rows), device=rows.device).split(workload.batch_size):
            uniforms = None
            if workload.preprocess.num_uniforms:
                uniforms = torch.rand(len(batch), workload.preprocess.num_uniforms, device=rows.device)
            inputs = workload.preprocess.augment(images[rows[batch]], uniforms)
            with autocast(case):
                loss = loss_of(model(inputs), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            if workload.client_optimizer.max_grad_norm:
                nn.utils.clip_grad_norm_(model.parameters(), workload.client_optimizer.max_grad_norm)
            optimizer.step()
    return workload.epochs * len(rows)


def local_optimizer(workload: Workload, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    sgd = workload.client_optimizer
    return torch.optim.SGD(parameters, sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay)


def server_optimizer(workload: Workload, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    server = workload.algorithm.server_optimizer
    if isinstance(server, AdaptiveServer):
        assert server.variant == "adam" and server.bias_correction, "PyTorch's Adam corrects its bias"
        return torch.optim.Adam(parameters, server.lr, (server.beta1, server.beta2), server.tau)
    assert isinstance(server, ServerSGD), "the peers step the server with SGD or Adam"
    return torch.optim.SGD(parameters, server.lr, momentum=server.momentum)


def loss_of(outputs_BC: Tensor, targets: Tensor) -> Tensor:
    return (F.cross_entropy if targets.dim() == 1 else F.binary_cross_entropy_with_logits)(outputs_BC, targets)


def autocast(case: BenchCase) -> AbstractContextManager[object]:
    return torch.autocast(case.device, torch.bfloat16) if case.precision == "bf16" else nullcontext()
