"""A stream: clients step in it one group after another, in its own buffers, on its own CUDA stream.

Every function here only reads and writes tensors at fixed addresses and never waits for the device, so that each can
be captured once as a CUDA graph and replayed. Axes: K clients side by side, P trainable values, W shared values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from manyeyes.components.client_optimizers import local_step, trained_mask
from manyeyes.core.algorithm import Correction
from manyeyes.core.state import RoundContext
from manyeyes.core.uplink import l2_norms
from manyeyes.engines.gpu.compiling import capture_graph

ROW_ALIGNMENT = 64  # values: where each client's weights begin, so that matrix products are fast for all of them


class RoundBuffers:
    """What all streams read in a round: the weights and what every client is sent, in device memory."""

    def __init__(self, weights: Tensor, num_trainable: int, context: RoundContext) -> None:
        correction_state, mask = context.correction_state, context.personal_mask
        self.weights, self.num_trainable = weights.clone(), num_trainable  # [W], P
        self.lr, self.clipping_norm = weights.new_zeros(1), weights.new_zeros(1)
        self.correction_state = None if correction_state is None else correction_state.clone()  # the server's [P]
        self.shared_mask = None if mask is None else (~mask).to(weights.dtype)  # 0 where a value is not sent, else 1
        self.personal_indices = None if mask is None else mask.nonzero()[:, 0]  # of the values that are not sent

    def update(self, weights: Tensor, context: RoundContext) -> None:
        """Copy what changes from round to round to where the streams read it."""
        self.weights.copy_(weights)
        self.lr.fill_(context.lr)
        self.clipping_norm.fill_(context.clipping_norm)
        if self.correction_state is not None:
            assert context.correction_state is not None, "the buffers were made for a correction with server state"
            self.correction_state.copy_(context.correction_state)

    def sent(self, updates_KW: Tensor) -> Tensor:
        """Return what clients send of their updates: all but their personal layers."""
        return updates_KW if self.shared_mask is None else updates_KW * self.shared_mask


class Stream:
    """The state of the clients that train in it, side by side."""

    def __init__(
        self, buffers: RoundBuffers, context: RoundContext, number: int, width: int, dtype: torch.dtype
    ) -> None:
        weights, num_trainable = buffers.weights, buffers.num_trainable
        device = weights.device
        self.buffers, self.context, self.number, self.dtype = buffers, context, number, dtype
        rows = weights.new_zeros(width, -(-num_trainable // ROW_ALIGNMENT) * ROW_ALIGNMENT)
        self.theta = rows[:, :num_trainable]
        self.statistics = weights.new_zeros(width, len(weights) - num_trainable)
        # what the model computes with
        self.compute_theta = (
            self.theta if dtype == torch.float32 else torch.zeros_like(rows, dtype=dtype)[:, :num_trainable]
        )
        initial = context.client_optimizer.init(weights[:num_trainable])
        self.opt_state = tuple(tensor.expand(width, -1).clone() for tensor in initial)
        self.start = weights.new_zeros(width, len(weights)) if context.personal_mask is not None else None
        offsets = context.correction is not None and has_offset(
            context.correction, buffers.correction_state, weights[:num_trainable]
        )
        self.offset = weights.new_zeros(width, num_trainable) if offsets else None  # zeros for a client without one
        self.losses = weights.new_zeros(width, dtype=torch.float64)
        self.finite = torch.ones(width, dtype=torch.bool, device=device)  # whether a client's new state is finite
        self.cursors = torch.zeros(2, dtype=torch.int64, device=device)  # in the plan's buffers
        self.step_index, self.group_index = self.cursors[:1], self.cursors[1:]  # the next step, the next group to end
        self.total = torch.zeros_like(weights)
        self.uploads: Tensor | None = None  # sum of what the corrections of clients upload [P]
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.functions: dict[Hashable, Callable[[], None]] = {}  # what it can run, by the names given to `capture`
        self._pool = None if self.stream is None else torch.cuda.graph_pool_handle()

    def reset(self, width: int) -> None:
        """Start the first K clients from the server's weights."""
        weights, num_trainable = self.buffers.weights, self.buffers.num_trainable
        self.set_theta(slice(width), weights[:num_trainable])
        self.statistics[:width] = weights[num_trainable:]
        self.losses[:width] = 0
        self.finite[:width] = True
        for tensor in self.opt_state:
            tensor[:width] = 0
        if self.start is not None:
            self.start[:width] = weights
        if self.offset is not None:
            assert self.context.correction is not None, "there is memory for an offset and no correction that makes one"
            offset = self.context.correction.offset(self.buffers.correction_state, None)
            self.offset[:width] = 0 if offset is None else offset

    def set_theta(self, clients: int | slice, theta: Tensor) -> None:
        """Set the trainable values of a client, or of several."""
        self.theta[clients] = theta
        if self.compute_theta is not self.theta:
            self.compute_theta[clients] = theta.to(self.dtype)

    def load_personal_weights(self, k: int, personal_weights: Tensor) -> None:
        """Start a client with its own weights in personal layers."""
        start, num_trainable = self.start, self.buffers.num_trainable
        assert start is not None, "a client has personal weights and the round has no personal layers"
        start[k, self.buffers.personal_indices] = personal_weights
        self.set_theta(k, start[k, :num_trainable])
        self.statistics[k] = start[k, num_trainable:]

    def step(
        self,
        gradient: Sequence[Tensor],
        losses_K: Tensor,
        is_active_K: Tensor,
        phases_K: Tensor | None = None,
        statistics_before_KS: Tensor | None = None,
    ) -> None:
        """Step the first K clients by their gradient in pieces; clients whose own steps are over do not move.

        In steps that train only a part of the model, `statistics_before_KS` are the statistics before the step.
        """
        width = len(losses_K)
        num_trainable, theta = self.buffers.num_trainable, self.theta[:width]
        offset = None if self.offset is None else self.offset[:width]
        opt_state = tuple(tensor[:width] for tensor in self.opt_state)
        context = replace(self.context, lr=self.buffers.lr)
        grad_KP = torch.cat(tuple(gradient), 1).float()
        server_theta = self.buffers.weights[:num_trainable]
        new_theta, new_state = local_step(context, theta, server_theta, grad_KP, offset, opt_state, phases_K)
        if width > 1:
            active = is_active_K[:, None]
            new_theta = torch.where(active, new_theta, theta)
            new_state = tuple(torch.where(active, new, old) for new, old in zip(new_state, opt_state, strict=True))
        for old, new in zip(opt_state, new_state, strict=True):
            old.copy_(new)
        self.set_theta(slice(width), new_theta)
        if phases_K is not None and statistics_before_KS is not None:
            statistics = self.statistics[:width]
            moves = trained_mask(self.context, phases_K)[:, num_trainable:]
            statistics.copy_(torch.where(moves, statistics, statistics_before_KS))
        self.losses[:width] += torch.where(is_active_K, losses_K.double(), 0)
        self.step_index += 1

    def weights(self, width: int) -> Tensor:
        """Return the weights of the first K clients [K, W]."""
        theta = self.theta[:width]
        return torch.cat([theta, self.statistics[:width]], 1) if self.statistics.numel() else theta

    def update(self, width: int) -> Tensor:
        """Return the updates of the first K clients, personal layers included [K, W]."""
        return (self.buffers.weights if self.start is None else self.start[:width]) - self.weights(width)

    def accumulate(self, width: int, client_weights: Tensor, results: Tensor) -> None:
        """Add the clipped updates of the finite clients to the stream's sum, and write each client's statistics."""
        update_KW = self.update(width)
        full_norm_K = l2_norms(update_KW)
        sent_KW = self.buffers.sent(update_KW)
        norm_K = full_norm_K if self.buffers.shared_mask is None else l2_norms(sent_KW)
        accepted_K = torch.isfinite(full_norm_K) & torch.isfinite(self.losses[:width]) & self.finite[:width]
        clip_factor_K = (self.buffers.clipping_norm / norm_K).clamp_max(1)
        weight_K = client_weights.index_select(0, self.group_index)[0, :width] * clip_factor_K
        for k in range(width):  # compiled, one kernel; a sum over k may use a kernel that reads values one by one
            self.total += torch.where(accepted_K[k], sent_KW[k] * weight_K[k], 0)
        statistics = torch.stack([self.losses[:width], norm_K.double(), accepted_K.double()], 1)
        results[:, :width].index_copy_(0, self.group_index, statistics[None])
        self.group_index += 1

    def capture(self, name: Hashable, function: Callable[[], None]) -> None:
        """Add a function by name: compiled by a first call and, on a GPU, captured as a graph that is replayed.

        What that call does to the stream is undone when a group begins.
        """
        if name in self.functions:
            return
        self.cursors.zero_()
        if self.stream is None:
            function()
            self.functions[name] = function
        else:
            graph, _ = capture_graph(function, self.stream, self._pool)
            self.functions[name] = graph.replay


def wait(waiting: torch.cuda.Stream | None, other: torch.cuda.Stream | None) -> None:
    """Let what is launched in a CUDA stream from now on wait for another stream; nothing on a CPU."""
    if waiting is not None and other is not None:
        waiting.wait_stream(other)


def has_offset(correction: Correction, correction_state: Tensor | None, theta: Tensor) -> bool:
    """Return whether a correction adds an offset to the gradients of new clients, or of those with a state."""
    if correction.offset(correction_state, None) is not None:
        return True
    ones = torch.ones_like(theta)
    full_gradient = ones if correction.needs_full_gradient else None
    client_state, _ = correction.client_update(correction_state, None, ones, 1.0, full_gradient)
    return client_state is not None and correction.offset(correction_state, client_state) is not None
