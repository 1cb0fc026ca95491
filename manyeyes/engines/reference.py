"""The reference engine: one client after another. In float32 it is the definition; the others are tested against it."""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyeyes.components.client_optimizers import local_step, trained_mask
from manyeyes.components.losses import EPS, training_loss, weighted_mean
from manyeyes.core.algorithm import OptState
from manyeyes.core.plan import ClientPlan, RoundPlan
from manyeyes.core.population import Floats, Ints, fetch
from manyeyes.core.registry import register
from manyeyes.core.rng import derive_key
from manyeyes.core.state import (
    CORRECTION_STATE,
    PERSONAL_WEIGHTS,
    ClientState,
    ClientStates,
    CohortResult,
    RoundContext,
    make_client_state,
    persisted_opt_state,
)
from manyeyes.core.uplink import simulate_uplink
from manyeyes.engines.base import EngineBase, EngineSetup, deterministic_kernels, limited_threads, merge_results
from manyeyes.engines.distributed.data_parallel import ClientGroup, LossAndGrad

FULL_GRADIENT_BATCH = 256  # examples per batch of the gradient over all of a client's data


@register("engine", "reference")
class ReferenceEngine(EngineBase):
    """Local steps exactly as planned, with exact batch sizes, and updates summed as they come."""

    name = "reference"
    splits_clients = True

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        self.model, self.population, self.preprocess = setup.model, setup.population, setup.preprocess
        self.device = setup.device
        self._threads = partial(limited_threads, 1) if setup.has_short_rounds else nullcontext
        self.precision = "float32" if setup.precision == "tf32" else setup.precision
        self._group: ClientGroup | None = None  # processes that train the same client, each a part of its batches

    def in_group(self, group: ClientGroup) -> ReferenceEngine:
        engine = copy.copy(self)
        engine._group = group
        return engine

    def train(
        self, weights: Tensor, plan: RoundPlan, context: RoundContext, client_states: ClientStates
    ) -> CohortResult:
        """Train the clients one after another, and sum what the finite ones send."""
        self.model.module.train()
        with self._threads(), _own_generators(self.device), deterministic_kernels("float32"):
            results = (
                ([k], self._train_client(weights, plan, client, context, client_states.get(client.client_id, {})))
                for k, client in enumerate(plan.clients)
            )
            return merge_results(weights, plan, results, context.keep_client_updates)

    def _train_client(
        self, weights: Tensor, plan: RoundPlan, client: ClientPlan, context: RoundContext, client_state: ClientState
    ) -> CohortResult:
        """Return the result of one client; a client whose update is not finite adds nothing to the sums."""
        _seed_modules(derive_key(plan.seed, "modules", plan.round, client.stream), self.device)
        update_W, loss, new_state, upload_P = self._train_locally(weights, client, context, client_state)
        received_W, norm, residual = simulate_uplink(update_W, plan, client, context, client_state)
        new_state |= residual
        tensors = (received_W, update_W, upload_P, *new_state.values())
        norms = (float(torch.linalg.vector_norm(tensor)) for tensor in tensors if tensor is not None)
        is_accepted = math.isfinite(loss) and all(map(math.isfinite, norms))
        return CohortResult(
            update_W=client.weight * received_W if is_accepted else torch.zeros_like(weights),
            uploads_P=upload_P if is_accepted else None,
            accepted_K=np.array([is_accepted]),
            loss_K=np.array([loss]),
            norm_K=np.array([norm]),
            client_states={client.client_id: new_state} if is_accepted and new_state else {},
            updates_KW=received_W[None] if is_accepted else None,
        )

    def _train_locally(
        self, weights: Tensor, client: ClientPlan, context: RoundContext, client_state: ClientState
    ) -> tuple[Tensor, float, ClientState, Tensor | None]:
        """Return theta_t - theta [W], the mean loss of the steps, the new state, and what the correction uploads."""
        start, mask, correction = weights.clone(), context.personal_mask, context.correction
        if mask is not None and PERSONAL_WEIGHTS in client_state:
            start[mask] = client_state[PERSONAL_WEIGHTS]
        correction_state = client_state.get(CORRECTION_STATE)
        offset, full_gradient = None, None
        if correction is not None:
            offset = correction.offset(context.correction_state, correction_state)
            if correction.needs_full_gradient:
                full_gradient = self.full_gradient(start, client, context)
        is_persistent = context.client_optimizer.persist_state
        opt_state = persisted_opt_state(client_state) or None if is_persistent else None
        end, opt_state, loss = self._local_steps(weights, start, client, context, offset, opt_state)

        update_W, upload_P = start - end, None
        if mask is not None:
            update_W[mask] = 0
        if correction is not None:
            correction_state, upload_P = correction.client_update(
                context.correction_state,
                correction_state,
                update_W[: self.num_trainable],
                client.num_steps * float(context.lr),
                full_gradient,
            )
        new_state = make_client_state(
            personal_weights=None if mask is None else end[mask],
            correction_state=correction_state if correction is not None else None,
            opt_state=opt_state or () if is_persistent else (),
        )
        return update_W, loss, new_state, upload_P

    def _local_steps(
        self,
        weights: Tensor,
        start: Tensor,
        client: ClientPlan,
        context: RoundContext,
        offset: Tensor | None,
        opt_state: OptState | None,
    ) -> tuple[Tensor, OptState | None, float]:
        """Return the client's weights after its steps [W], the optimizer state, and the mean loss."""
        server_theta, num_steps = weights[: self.num_trainable], len(client.example_indices_SB)
        theta, statistics = start[: self.num_trainable], start[self.num_trainable :].clone()
        loss_sum = 0.0
        for step in range(num_steps):
            phase = None if client.phase_S is None else torch.tensor(client.phase_S[step], device=self.device)
            statistics_before = statistics if phase is None else statistics.clone()
            loss, grad = self._batch_gradient(theta, statistics, client, step, context)
            theta, opt_state = local_step(context, theta, server_theta, grad, offset, opt_state, phase)
            if phase is not None:
                moves = trained_mask(context, phase)[self.num_trainable :]
                statistics = torch.where(moves, statistics, statistics_before)
            loss_sum += loss
        return torch.cat([theta, statistics]), opt_state, loss_sum / num_steps

    def _batch_gradient(
        self, theta: Tensor, statistics: Tensor, client: ClientPlan, step: int, context: RoundContext
    ) -> LossAndGrad:
        """Return the loss of one batch and its gradient [P], computed alone or together with a group's members."""
        indices_B, weights_B = client.example_indices_SB[step], client.example_weights_SB[step]
        seed, is_real_B = torch.tensor(client.dropout_seeds_S[step], device=self.device), indices_B >= 0

        def gradient_of(selected_B: NDArray[np.bool_]) -> LossAndGrad:
            uniforms = None
            if client.augment_uniforms_SBD is not None:
                uniforms = torch.from_numpy(client.augment_uniforms_SBD[step][selected_B]).to(self.device)
            selected = indices_B[selected_B], weights_B[selected_B]
            return self._gradient(theta, statistics, context, *selected, uniforms, seed)

        if self._group is None:
            return gradient_of(is_real_B)
        return self._group.gradient(gradient_of, is_real_B, weights_B, theta)

    def full_gradient(self, weights: Tensor, client: ClientPlan, context: RoundContext) -> Tensor:
        """Return the gradient of the loss over all of the client's examples [P], without augmentation."""
        indices, example_weights = client.full_indices, client.full_weights
        assert indices is not None and example_weights is not None, (
            "the plan was made for a correction that does not need the gradient of all of a client's examples"
        )
        theta, statistics = weights[: self.num_trainable], weights[self.num_trainable :]
        total = torch.zeros_like(theta)
        self.model.module.eval()
        for first in range(0, len(indices), FULL_GRADIENT_BATCH):
            batch = slice(first, first + FULL_GRADIENT_BATCH)
            total += self._gradient(theta, statistics, context, indices[batch], example_weights[batch], is_sum=True)[1]
        self.model.module.train()
        return total / max(float(example_weights.sum()), EPS)

    def _gradient(
        self,
        theta: Tensor,
        statistics: Tensor,
        context: RoundContext,
        examples: Ints,
        example_weights: Floats,
        uniforms: Tensor | None = None,
        seed: Tensor | None = None,
        is_sum: bool = False,
    ) -> LossAndGrad:
        """Return the mean loss of augmented examples and its gradient [P]; or the sum, without augmentation."""
        images, targets = fetch(self.population, examples, self.device)
        weights_B = torch.from_numpy(example_weights).to(self.device)
        inputs = self.preprocess.evaluate(images) if is_sum else self.preprocess.augment(images, uniforms)
        leaf, inputs = theta.detach(), self.model.to_memory_format(inputs)
        if self.precision == "bf16":
            leaf, inputs = leaf.bfloat16(), inputs.bfloat16()
        outputs = self.model(leaf.requires_grad_(), statistics, inputs, seed).to(theta.dtype)
        losses_B = training_loss(context, self.population)(outputs, targets)
        loss = (losses_B * weights_B).sum() if is_sum else weighted_mean(losses_B, weights_B)
        (grad,) = torch.autograd.grad(loss, leaf)
        return float(loss.detach()), grad.to(theta.dtype)


def _own_generators(device: torch.device) -> AbstractContextManager[None]:
    """Restore the global random generators after the block."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def _seed_modules(seed: int, device: torch.device) -> None:
    """Seed the global random generators, for modules of a client that draw from them."""
    torch.default_generator.manual_seed(seed % 2**63)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed % 2**63)
