"""The reference engine: one client after another. In float32 it is the definition; the others are tested against it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.chance import key
from manyeyes.data.augment import Augment
from manyeyes.engine.batch import LEAST, fetch, losses, weighted_mean
from manyeyes.engine.sending import send
from manyeyes.engine.teams import Team
from manyeyes.models.flat import FlatModel
from manyeyes.parts.local import descend, moving
from manyeyes.population import Population
from manyeyes.work import Aggregate, Client, Clients, Personal, Plan, Work


class Reference:
    """Local steps exactly as planned, with exact batch sizes, and updates summed as they come."""

    def __init__(
        self,
        model: FlatModel,
        population: Population,
        augment: Augment,
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        self.model, self.population, self.augment, self.device = model, population, augment, device
        self.precision = precision
        self.trained, self.dice = model.trained, augment.dice
        self.team: Team | None = None  # other ranks that train the same client, each a part of its batches
        self._masks: dict[Personal, Tensor] = {}

    def personal(self, personal: Personal) -> Tensor:
        """True where a number stays with the client [W]; asked again, the same tensor."""
        if personal not in self._masks:
            mask = self.model.mask(personal.names(self.model.module).__contains__)
            if not mask.any():
                raise ValueError(f"no layer of the model matches {personal}: see its parameter names")
            self._masks[personal] = mask
        return self._masks[personal]

    def train(self, weights: Tensor, plan: Plan, work: Work, clients: Clients) -> Aggregate:
        """Every client's local training, and the sum of what the finite ones send."""
        total = torch.zeros_like(weights)
        reports: Tensor | None = None
        each_KW = weights.new_zeros(len(plan.clients), len(weights)) if work.apart else None
        kept, loss_K, norm_K = [], [], []
        keeps: dict[int, dict[str, Tensor]] = {}
        for place, client in enumerate(plan.clients):
            own = clients.get(client.key, {})
            with _settings(key(plan.seed, "modules", plan.round, client.key), self.device):
                update, loss, keeps[client.key], report = self._client(weights, client, work, own)
            sent, norm, owed = send(update, plan, client, work, own)
            keeps[client.key] |= owed
            kept.append(np.isfinite(loss) and all(map(_finite, (update, sent, report, *keeps[client.key].values()))))
            loss_K.append(loss)
            norm_K.append(norm)
            if not kept[-1] or not keeps[client.key]:
                del keeps[client.key]
            if not kept[-1]:
                continue
            if each_KW is None:
                total += client.weight * sent
            else:
                each_KW[place] = sent
            if report is not None:
                reports = report if reports is None else reports + report
        return Aggregate(total, reports, np.array(kept), np.array(loss_K), np.array(norm_K), keeps, each_KW)

    def _client(
        self, weights: Tensor, client: Client, work: Work, own: dict[str, Tensor]
    ) -> tuple[Tensor, float, dict[str, Tensor], Tensor | None]:
        """One client: its update theta_t - theta, its mean loss, what it keeps, and what its correction reports."""
        begin = weights.clone()
        if work.personal is not None and "personal" in own:
            begin[work.personal] = own["personal"]
        start, statistics = begin[: self.trained], begin[self.trained :].clone()
        correct, control = work.correct, own.get("control")
        gradient = self.whole_gradient(start, statistics, client) if correct and correct.whole else None
        shift = correct.shift(work.shared, control) if correct else None

        theta, slots = start, kept_slots(own) or work.local.start(start)
        loss_sum = 0.0
        for step in range(client.steps):
            only = None if client.only_S is None else torch.tensor(client.only_S[step], device=self.device)
            before = None if only is None else statistics.clone()
            loss, slope = self._gradient(theta, statistics, client, step)
            theta, slots = descend(work, theta, weights[: self.trained], slope, shift, slots, only)
            if only is not None and before is not None:
                statistics = torch.where(moving(work, only)[self.trained :], statistics, before)
            loss_sum += loss
        end = torch.cat([theta, statistics])

        update, keeps, report = begin - end, {}, None
        if work.personal is not None:
            keeps["personal"] = end[work.personal]
            update[work.personal] = 0
        if correct:
            distance = client.steps * float(work.lr)
            control, report = correct.finish(work.shared, control, update[: self.trained], distance, gradient)
            keeps |= {} if control is None else {"control": control}
        if work.local.keep:
            keeps |= {f"slot{i}": slot for i, slot in enumerate(slots)}
        return update, loss_sum / client.steps, keeps, report

    def _gradient(self, theta: Tensor, statistics: Tensor, client: Client, step: int) -> tuple[float, Tensor]:
        """The loss of one batch and its gradient [P]."""
        real = client.rows_SB[step] >= 0
        if self.team is None:
            return self._slope(theta, statistics, client, step, real)
        parts = partial(self._slope, theta, statistics, client, step)
        return self.team.gradient(parts, real, client.weights_SB[step], theta)

    def _slope(
        self, theta: Tensor, statistics: Tensor, client: Client, step: int, real: NDArray[np.bool_]
    ) -> tuple[float, Tensor]:
        images, targets = fetch(self.population, client.rows_SB[step][real], self.device)
        weights = torch.from_numpy(client.weights_SB[step][real]).to(self.device)
        dice = None if client.dice_SBD is None else torch.from_numpy(client.dice_SBD[step][real]).to(self.device)
        leaf = self._short(theta.detach()).requires_grad_()
        self.model.module.train()
        inputs = self._short(self.model.arranged(self.augment.train(images, dice)))
        seed = torch.tensor(client.seeds_S[step], device=self.device)
        outputs = self.model(leaf, statistics, inputs, seed).to(theta.dtype)
        loss = weighted_mean(losses(outputs, targets), weights)
        (slope,) = torch.autograd.grad(loss, leaf)
        return float(loss.detach()), slope.to(theta.dtype)

    def whole_gradient(self, theta: Tensor, statistics: Tensor, client: Client, batch: int = 256) -> Tensor:
        """The gradient of the loss over everything that the client holds [P]; no augmentation."""
        assert client.whole is not None and client.whole_weights is not None, (
            "the plan was made for a correction that does not need the gradient of a client's whole data"
        )
        total = torch.zeros_like(theta)
        self.model.module.eval()
        for first in range(0, len(client.whole), batch):
            images, targets = fetch(self.population, client.whole[first : first + batch], self.device)
            weights = torch.from_numpy(client.whole_weights[first : first + batch]).to(self.device)
            leaf = self._short(theta.detach()).requires_grad_()
            inputs = self._short(self.model.arranged(self.augment.evaluate(images)))
            outputs = self.model(leaf, statistics, inputs).to(theta.dtype)
            total += torch.autograd.grad((losses(outputs, targets) * weights).sum(), leaf)[0]
        return total / max(float(client.whole_weights.sum()), LEAST)

    def _short(self, numbers: Tensor) -> Tensor:
        """What the model computes with."""
        return numbers.bfloat16() if self.precision == "bf16" else numbers


def _finite(tensor: Tensor | None) -> bool:
    return tensor is None or math.isfinite(torch.linalg.vector_norm(tensor))


def kept_slots(own: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The state of the local optimiser that a client has kept."""
    return tuple(own[name] for name in sorted(own) if name.startswith("slot"))


@contextmanager
def _settings(seed: int, device: torch.device) -> Iterator[None]:
    """Full float32, repeatable kernels, and a generator of this client's own for modules that draw."""
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
    ):
        torch.default_generator.manual_seed(seed % 2**63)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed % 2**63)
        yield
