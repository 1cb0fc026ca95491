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

from manyeyes.components.client_optimizers import local_step, trained_mask
from manyeyes.core.algorithm import PersonalLayers
from manyeyes.core.engine import CohortResult, RoundContext
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.rng import derive_key
from manyeyes.core.state import ClientStates
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.batch import EPS, fetch, losses, weighted_mean
from manyeyes.engines.data_parallel import ClientGroup
from manyeyes.engines.uplink import simulate_uplink
from manyeyes.models.flat import FlatModel


class ReferenceEngine:
    """Local steps exactly as planned, with exact batch sizes, and updates summed as they come."""

    def __init__(
        self,
        model: FlatModel,
        population: Population,
        augment: Preprocess,
        device: torch.device,
        precision: str = "float32",
    ) -> None:
        self.model, self.population, self.augment, self.device = model, population, augment, device
        self.precision = precision
        self.num_trainable, self.num_augment_uniforms = model.num_trainable, augment.num_uniforms
        self.group: ClientGroup | None = None  # other ranks that train the same client, each a part of its batches
        self._masks: dict[PersonalLayers, Tensor] = {}

    def personal_mask(self, personal_layers: PersonalLayers) -> Tensor:
        """True where a number stays with the client [W]; asked again, the same tensor."""
        if personal_layers not in self._masks:
            mask = self.model.mask(personal_layers.parameter_names(self.model.module).__contains__)
            if not mask.any():
                raise ValueError(f"no layer of the model matches {personal_layers}: see its parameter names")
            self._masks[personal_layers] = mask
        return self._masks[personal_layers]

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Every client's local training, and the sum of what the finite ones send."""
        total = torch.zeros_like(weights)
        reports: Tensor | None = None
        each_KW = weights.new_zeros(len(plan.clients), len(weights)) if context.keep_client_updates else None
        kept, loss_K, norm_K = [], [], []
        keeps: dict[int, dict[str, Tensor]] = {}
        for place, client in enumerate(plan.clients):
            own = client_states.get(client.client_id, {})
            with _settings(derive_key(plan.seed, "modules", plan.round, client.client_id), self.device):
                update, loss, keeps[client.client_id], report = self._client(weights, client, context, own)
            sent, norm, owed = simulate_uplink(update, plan, client, context, own)
            keeps[client.client_id] |= owed
            kept.append(
                np.isfinite(loss) and all(map(_finite, (update, sent, report, *keeps[client.client_id].values())))
            )
            loss_K.append(loss)
            norm_K.append(norm)
            if not kept[-1] or not keeps[client.client_id]:
                del keeps[client.client_id]
            if not kept[-1]:
                continue
            if each_KW is None:
                total += client.weight * sent
            else:
                each_KW[place] = sent
            if report is not None:
                reports = report if reports is None else reports + report
        return CohortResult(total, reports, np.array(kept), np.array(loss_K), np.array(norm_K), keeps, each_KW)

    def _client(
        self, weights: Tensor, client: ClientPlan, work: RoundContext, own: dict[str, Tensor]
    ) -> tuple[Tensor, float, dict[str, Tensor], Tensor | None]:
        """One client: its update theta_t - theta, its mean loss, what it keeps, and what its correction reports."""
        begin = weights.clone()
        if work.personal_mask is not None and "personal" in own:
            begin[work.personal_mask] = own["personal"]
        start, statistics = begin[: self.num_trainable], begin[self.num_trainable :].clone()
        correct, control = work.correction, own.get("control")
        gradient = self.full_gradient(start, statistics, client) if correct and correct.needs_full_gradient else None
        shift = correct.offset(work.correction_state, control) if correct else None

        theta, slots = start, persisted_opt_state(own) or work.client_optimizer.init(start)
        loss_sum = 0.0
        for step in range(client.num_steps):
            only = None if client.phase_S is None else torch.tensor(client.phase_S[step], device=self.device)
            before = None if only is None else statistics.clone()
            loss, slope = self._gradient(theta, statistics, client, step)
            theta, slots = local_step(work, theta, weights[: self.num_trainable], slope, shift, slots, only)
            if only is not None and before is not None:
                statistics = torch.where(trained_mask(work, only)[self.num_trainable :], statistics, before)
            loss_sum += loss
        end = torch.cat([theta, statistics])

        update, keeps, report = begin - end, {}, None
        if work.personal_mask is not None:
            keeps["personal"] = end[work.personal_mask]
            update[work.personal_mask] = 0
        if correct:
            distance = client.num_steps * float(work.lr)
            control, report = correct.client_update(
                work.correction_state, control, update[: self.num_trainable], distance, gradient
            )
            keeps |= {} if control is None else {"control": control}
        if work.client_optimizer.persist_state:
            keeps |= {f"slot{i}": slot for i, slot in enumerate(slots)}
        return update, loss_sum / client.num_steps, keeps, report

    def _gradient(self, theta: Tensor, statistics: Tensor, client: ClientPlan, step: int) -> tuple[float, Tensor]:
        """The loss of one batch and its gradient [P]."""
        real = client.example_indices_SB[step] >= 0
        if self.group is None:
            return self._slope(theta, statistics, client, step, real)
        parts = partial(self._slope, theta, statistics, client, step)
        return self.group.gradient(parts, real, client.example_weights_SB[step], theta)

    def _slope(
        self, theta: Tensor, statistics: Tensor, client: ClientPlan, step: int, real: NDArray[np.bool_]
    ) -> tuple[float, Tensor]:
        images, targets = fetch(self.population, client.example_indices_SB[step][real], self.device)
        weights = torch.from_numpy(client.example_weights_SB[step][real]).to(self.device)
        dice = (
            None
            if client.augment_uniforms_SBD is None
            else torch.from_numpy(client.augment_uniforms_SBD[step][real]).to(self.device)
        )
        leaf = self._short(theta.detach()).requires_grad_()
        self.model.module.train()
        inputs = self._short(self.model.to_memory_format(self.augment.augment(images, dice)))
        seed = torch.tensor(client.dropout_seeds_S[step], device=self.device)
        outputs = self.model(leaf, statistics, inputs, seed).to(theta.dtype)
        loss = weighted_mean(losses(outputs, targets), weights)
        (slope,) = torch.autograd.grad(loss, leaf)
        return float(loss.detach()), slope.to(theta.dtype)

    def full_gradient(self, theta: Tensor, statistics: Tensor, client: ClientPlan, batch: int = 256) -> Tensor:
        """The gradient of the loss over everything that the client holds [P]; no augmentation."""
        assert client.full_indices is not None and client.full_weights is not None, (
            "the plan was made for a correction that does not need the gradient of a client's whole data"
        )
        total = torch.zeros_like(theta)
        self.model.module.eval()
        for first in range(0, len(client.full_indices), batch):
            images, targets = fetch(self.population, client.full_indices[first : first + batch], self.device)
            weights = torch.from_numpy(client.full_weights[first : first + batch]).to(self.device)
            leaf = self._short(theta.detach()).requires_grad_()
            inputs = self._short(self.model.to_memory_format(self.augment.evaluate(images)))
            outputs = self.model(leaf, statistics, inputs).to(theta.dtype)
            total += torch.autograd.grad((losses(outputs, targets) * weights).sum(), leaf)[0]
        return total / max(float(client.full_weights.sum()), EPS)

    def _short(self, numbers: Tensor) -> Tensor:
        """What the model computes with."""
        return numbers.bfloat16() if self.precision == "bf16" else numbers


def _finite(tensor: Tensor | None) -> bool:
    return tensor is None or math.isfinite(torch.linalg.vector_norm(tensor))


def persisted_opt_state(own: dict[str, Tensor]) -> tuple[Tensor, ...]:
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
