"""A plain PyTorch loop, as a good researcher writes it: one client after another, images on the device."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rounds.case import Case, Played, play_rounds, prepare
from benchmarks.rounds.works import Workload
from manyeyes.components import AdaptiveServer, ServerSGD
from manyeyes.core.population import Ints, Population


@dataclass(frozen=True, eq=False)
class Held:
    """Everyone's data on the device; user u holds the examples `offsets[u]` to `offsets[u + 1]`."""

    images: Tensor  # uint8 [N, H, W, 3]
    rows: Tensor  # the image of each example
    targets: Tensor
    offsets: Ints

    @staticmethod
    def of(people: Population, device: torch.device) -> Held:
        targets = people.labels.targets(np.arange(len(people)))
        images, rows, held = (
            torch.from_numpy(array).to(device) for array in (people.images, people.image_indices, targets)
        )
        return Held(images, rows, held, people.offsets)

    def user(self, user: int) -> tuple[Tensor, Tensor]:
        """The images' rows and the targets of one user."""
        mine = slice(self.offsets[user], self.offsets[user + 1])
        return self.rows[mine], self.targets[mine]


def play(case: Case, work: Workload) -> Played:
    device = prepare(case)
    held = Held.of(work.population(), device)
    model = work.module().to(device).train()
    if work.pooled:
        optimizer = local_optimizer(work, model.parameters())
        whole = (held.rows, held.targets)
        return play_rounds(case, model, lambda: train_client(work, model, optimizer, held.images, *whole, case))

    client = copy.deepcopy(model)
    server = server_optimizer(work, model.parameters())
    rng = np.random.default_rng(0)

    def play_round() -> int:
        total = [torch.zeros_like(p) for p in model.parameters()]
        examples = 0
        for user in rng.choice(work.users, work.cohort, replace=False):
            client.load_state_dict(model.state_dict())
            rows, targets = held.user(user)
            train_client(work, client, local_optimizer(work, client.parameters()), held.images, rows, targets, case)
            with torch.no_grad():
                for sum_, before, after in zip(total, model.parameters(), client.parameters(), strict=True):
                    sum_ += len(rows) * (before - after)
            examples += len(rows)
        for parameter, sum_ in zip(model.parameters(), total, strict=True):
            parameter.grad = sum_ / examples
        server.step()
        return examples * work.epochs

    return play_rounds(case, model, play_round)


def train_client(
    work: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    rows: Tensor,
    targets: Tensor,
    case: Case,
) -> int:
    """Local training; returns how many examples it trained on."""
    for _ in range(work.epochs):
        for batch in torch.randperm(len(rows), device=rows.device).split(work.batch):
            dice = (
                torch.rand(len(batch), work.augment.num_uniforms, device=rows.device)
                if work.augment.num_uniforms
                else None
            )
            inputs = work.augment.augment(images[rows[batch]], dice)
            with autocast(case):
                loss = loss_of(model(inputs), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            if work.local.max_grad_norm:
                nn.utils.clip_grad_norm_(model.parameters(), work.local.max_grad_norm)
            optimizer.step()
    return work.epochs * len(rows)


def local_optimizer(work: Workload, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    local = work.local
    return torch.optim.SGD(parameters, local.lr, momentum=local.momentum, weight_decay=local.weight_decay)


def server_optimizer(work: Workload, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    server = work.algorithm.server_optimizer
    if isinstance(server, AdaptiveServer):
        assert server.variant == "adam" and server.bias_correction  # which is PyTorch's Adam
        return torch.optim.Adam(parameters, server.lr, (server.beta1, server.beta2), server.tau)
    assert isinstance(server, ServerSGD)
    return torch.optim.SGD(parameters, server.lr, momentum=server.momentum)


def loss_of(outputs_BC: Tensor, targets: Tensor) -> Tensor:
    return (F.cross_entropy if targets.dim() == 1 else F.binary_cross_entropy_with_logits)(outputs_BC, targets)


def autocast(case: Case) -> AbstractContextManager[object]:
    return torch.autocast(case.device, torch.bfloat16) if case.precision == "bf16" else nullcontext()
