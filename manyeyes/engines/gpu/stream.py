"""A lane: clients step in it one group after another, in buffers of its own, on a CUDA stream of its own.

Every function here only reads and writes tensors at fixed addresses and never waits for the device, so that each can
be captured once as a CUDA graph and replayed. Axes: K clients side by side, P trained parameters, W shared numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manyeyes.components.client_optimizers import local_step, trained_mask
from manyeyes.components.numerics import l2_norms
from manyeyes.core.algorithm import Correction
from manyeyes.core.engine import RoundContext

ALIGNED = 64  # numbers: where each client's begin, for matrix products that are fast for all of them


@dataclass(frozen=True, eq=False)
class RoundBuffers:
    """What all lanes read: the round's weights and what every client is told, in device memory."""

    weights: Tensor  # [W]
    num_trainable: int  # P
    lr: Tensor
    clipping_norm: Tensor
    control: Tensor | None  # what the server keeps for the correction [P]
    mask: Tensor | None  # 0 where a number stays with the client, else 1 [W]
    personal_indices: Tensor | None  # the places of those that stay


class Stream:
    """The state of the clients that train in it, side by side."""

    def __init__(self, shared: RoundBuffers, work: RoundContext, number: int, width: int, dtype: torch.dtype) -> None:
        weights, trained = shared.weights, shared.num_trainable
        device = weights.device
        self.buffers, self.work, self.number, self.dtype = shared, work, number, dtype
        rows = weights.new_zeros(width, -(-trained // ALIGNED) * ALIGNED)
        self.theta = rows[:, :trained]
        self.statistics = weights.new_zeros(width, len(weights) - trained)
        # what the model computes with
        self.copy = self.theta if dtype == torch.float32 else torch.zeros_like(rows, dtype=dtype)[:, :trained]
        self.opt_state = tuple(slot.expand(width, -1).clone() for slot in work.client_optimizer.init(weights[:trained]))
        self.start = weights.new_zeros(width, len(weights)) if work.personal_mask is not None else None
        shifts = work.correction is not None and can_shift(work.correction, shared.control, weights[:trained])
        self.shift = weights.new_zeros(width, trained) if shifts else None  # zeros for a client that has none
        self.losses = weights.new_zeros(width, dtype=torch.float64)
        self.finite = torch.ones(width, dtype=torch.bool, device=device)  # whether what a client keeps is finite
        self.cursors = torch.zeros(2, dtype=torch.int64, device=device)
        self.cursor, self.group_index = (
            self.cursors[:1],
            self.cursors[1:],
        )  # in the table: the next step, the next group to end
        self.total = torch.zeros_like(weights)
        self.reports: Tensor | None = None  # sum of what corrections report [P]
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ready: dict[Hashable, Callable[[], None]] = {}
        self._pool = None if self.stream is None else torch.cuda.graph_pool_handle()

    def reset(self, width: int) -> None:
        """The clients start from the server's weights."""
        weights, trained = self.buffers.weights, self.buffers.num_trainable
        self.theta[:width] = weights[:trained]
        self.statistics[:width] = weights[trained:]
        self.losses[:width] = 0
        self.finite[:width] = True
        for slot in self.opt_state:
            slot[:width] = 0
        if self.copy is not self.theta:
            self.copy[:width] = weights[:trained]
        if self.start is not None:
            self.start[:width] = weights
        if self.shift is not None:
            assert self.work.correction is not None, "there is room for a shift and no correction that makes one"
            shift = self.work.correction.offset(self.buffers.control, None)
            self.shift[:width] = 0 if shift is None else shift

    def load_client_state(
        self, k: int, personal: Tensor | None, control: Tensor | None, slots: tuple[Tensor, ...]
    ) -> None:
        """What one client has kept from the last round it took part in takes its place."""
        trained = self.buffers.num_trainable
        if personal is not None:
            assert self.start is not None and self.buffers.personal_indices is not None, (
                "a client has kept personal layers and this work has none"
            )
            self.start[k, self.buffers.personal_indices] = personal
            self.theta[k], self.statistics[k] = self.start[k, :trained], self.start[k, trained:]
            if self.copy is not self.theta:
                self.copy[k] = self.theta[k]
        if control is not None:
            assert self.work.correction is not None, (
                "a client has kept the state of a correction and this work has none"
            )
            shift = self.work.correction.offset(self.buffers.control, control)
            if self.shift is not None:
                self.shift[k] = 0 if shift is None else shift
            elif shift is not None:
                name = type(self.work.correction).__name__
                raise ValueError(
                    f"{name}.shift returns a tensor now and returned None both for a new client and for what "
                    f"{name}.finish keeps of an update of ones, so the lanes have no room for it: return zeros there, "
                    "or use engine=reference"
                )
        for mine, kept in zip(self.opt_state, slots, strict=False):
            mine[k] = kept

    def step(
        self,
        gradient: Sequence[Tensor],
        losses_K: Tensor,
        active_K: Tensor,
        only_K: Tensor | None = None,
        before_KS: Tensor | None = None,
    ) -> None:
        """One step of the first K clients, by their gradient in pieces; those whose own steps are over stand still.

        Where steps move a part of the model alone, `before_KS` are the statistics as they were.
        """
        width = len(losses_K)
        trained, theta = self.buffers.num_trainable, self.theta[:width]
        shift = None if self.shift is None else self.shift[:width]
        slots = tuple(slot[:width] for slot in self.opt_state)
        work = replace(self.work, lr=self.buffers.lr)
        gradient_KP = torch.cat(tuple(gradient), 1).float()
        moved, slid = local_step(work, theta, self.buffers.weights[:trained], gradient_KP, shift, slots, only_K)
        if width > 1:
            moved = torch.where(active_K[:, None], moved, theta)
            slid = tuple(torch.where(active_K[:, None], new, old) for new, old in zip(slid, slots, strict=True))
        for old, new in zip(slots, slid, strict=True):
            old.copy_(new)
        theta.copy_(moved)
        if self.copy is not self.theta:
            self.copy[:width] = moved.to(self.dtype)
        if only_K is not None and before_KS is not None:
            statistics = self.statistics[:width]
            statistics.copy_(torch.where(trained_mask(self.work, only_K)[:, trained:], statistics, before_KS))
        self.losses[:width] += torch.where(active_K, losses_K.double(), 0)
        self.cursor += 1

    def weights(self, width: int) -> Tensor:
        """Where the first K clients are now [K, W]."""
        theta = self.theta[:width]
        return torch.cat([theta, self.statistics[:width]], 1) if self.statistics.numel() else theta

    def update(self, width: int) -> Tensor:
        """What the first K clients have moved, personal layers too [K, W]."""
        return (self.buffers.weights if self.start is None else self.start[:width]) - self.weights(width)

    def accumulate(self, width: int, share: Tensor, results: Tensor) -> None:
        """Add what the finite clients send to the lane's sum, none longer than the bound, and note how each went."""
        update_KW = self.update(width)
        whole_K = l2_norms(update_KW)
        sent_KW = update_KW if self.buffers.mask is None else update_KW * self.buffers.mask
        norm_K = whole_K if self.buffers.mask is None else l2_norms(sent_KW)
        kept_K = torch.isfinite(whole_K) & torch.isfinite(self.losses[:width]) & self.finite[:width]
        weight_K = share.index_select(0, self.group_index)[0, :width] * (self.buffers.clipping_norm / norm_K).clamp_max(
            1
        )
        for k in range(width):  # compiled, one kernel; the one of a sum over k may read its numbers one by one
            self.total += torch.where(kept_K[k], sent_KW[k] * weight_K[k], 0)
        notes = torch.stack([self.losses[:width], norm_K.double(), kept_K.double()], 1)
        results[:, :width].index_copy_(0, self.group_index, notes[None])
        self.group_index += 1

    def wait_for(self, stream: torch.cuda.Stream | None) -> None:
        """What is sent to the lane from now on waits for what is in a stream; on a CPU there is none."""
        if self.stream is not None and stream is not None:
            self.stream.wait_stream(stream)

    def signal(self, stream: torch.cuda.Stream | None) -> None:
        """What is sent to a stream from now on waits for the lane."""
        if self.stream is not None and stream is not None:
            stream.wait_stream(self.stream)

    def run(self, name: Hashable) -> None:
        """Call a function that `capture` made ready."""
        self._ready[name]()

    def capture(self, name: Hashable, function: Callable[[], None]) -> None:
        """Make a function ready: compiled by a first call and, on a GPU, a graph to be replayed.

        What that call did to the lane is undone by the begin of a group.
        """
        if name in self._ready:
            return
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            self.cursors.zero_()
            function()
        self._ready[name] = function
        if self.stream is None:
            return
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self.stream, capture_error_mode="thread_local"):
            function()
        self._ready[name] = graph.replay


def can_shift(correct: Correction, control: Tensor | None, theta: Tensor) -> bool:
    """Whether a correction shifts the gradients of new clients, or of those that have kept something."""
    if correct.offset(control, None) is not None:
        return True
    ones = torch.ones_like(theta)
    own, _ = correct.client_update(control, None, ones, 1.0, ones if correct.needs_full_gradient else None)
    return own is not None and correct.offset(control, own) is not None


@contextmanager
def make_streams(device: torch.device) -> Iterator[Callable[[Stream], None]]:
    """A function that sends what is launched next to a lane: many times cheaper than a context for every launch."""
    if device.type != "cuda":
        yield lambda lane: None
        return
    main = torch.cuda.current_stream(device)

    def turn_to(lane: Stream) -> None:
        assert lane.stream is not None, "a lane on a GPU has no stream"
        torch.cuda.set_stream(lane.stream)

    try:
        yield turn_to
    finally:
        torch.cuda.set_stream(main)
