"""What clients bring to a round and keep from it, in the stream where they train."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyeyes.core.algorithm import Loss
from manyeyes.core.plan import ClientPlan
from manyeyes.core.state import CORRECTION_STATE, OPT_STATE, PERSONAL_WEIGHTS, ClientState, ClientStates, RoundContext
from manyeyes.engines.gpu.stream import RoundBuffers, Stream
from manyeyes.engines.reference import ReferenceEngine


class ClientStateTransfer:
    """Launches between the captured ones, only for algorithms whose clients keep or upload something."""

    def __init__(
        self,
        reference: ReferenceEngine,
        buffers: RoundBuffers,
        context: RoundContext,
        client_states: ClientStates,
        loss_function: Loss,
    ) -> None:
        self.reference, self.buffers, self.context, self.old_states = reference, buffers, context, client_states
        self.loss_function = loss_function
        self.new_states: dict[int, ClientState] = {}
        self._is_needed = (
            context.personal_mask is not None
            or context.correction is not None
            or context.client_optimizer.persist_state
        )
        self._full_gradients: dict[int, Tensor] = {}

    def load(self, stream: Stream, clients: Sequence[ClientPlan]) -> None:
        """Load the clients' states into the stream where they begin."""
        if not self._is_needed:
            return
        correction = self.context.correction
        for k, client in enumerate(clients):
            stream.load_client_state(k, self.old_states.get(client.client_id, {}))
            if correction is not None and correction.needs_full_gradient:
                weights = self.buffers.weights if stream.start is None else stream.start[k]
                theta, statistics = weights.split(
                    [self.buffers.num_trainable, len(weights) - self.buffers.num_trainable]
                )
                self._full_gradients[client.client_id] = self.reference.full_gradient(
                    theta, statistics, client, self.loss_function
                )

    def store(self, stream: Stream, clients: Sequence[ClientPlan]) -> None:
        """Store the clients' new states and add up their uploads, where they are finite."""
        if not self._is_needed:
            return
        weights_KW, update_KW = stream.weights(len(clients)), stream.update(len(clients))
        mask = self.buffers.shared_mask
        sent_KW = update_KW if mask is None else update_KW * mask
        for k, client in enumerate(clients):
            state, upload = ClientState(), None
            if self.buffers.personal_indices is not None:
                state[PERSONAL_WEIGHTS] = weights_KW[k].index_select(0, self.buffers.personal_indices)
            if self.context.correction is not None:
                correction_state, upload = self._update_correction(client, sent_KW[k])
                state |= {} if correction_state is None else {CORRECTION_STATE: correction_state}
            if self.context.client_optimizer.persist_state:
                state |= {f"{OPT_STATE}{i}": tensor[k].clone() for i, tensor in enumerate(stream.opt_state)}
            tensors = [update_KW[k], *state.values(), *(() if upload is None else (upload,))]
            is_finite = torch.stack([torch.isfinite(torch.linalg.vector_norm(tensor)) for tensor in tensors]).all()
            is_finite &= torch.isfinite(stream.losses[k])
            stream.finite[k] = is_finite
            if upload is not None:
                upload = torch.where(is_finite, upload, 0)
                stream.uploads = upload if stream.uploads is None else stream.uploads + upload
            if state:
                self.new_states[client.client_id] = state

    def _update_correction(self, client: ClientPlan, sent_W: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the new state of a client's correction, and its upload."""
        assert self.context.correction is not None, "the round has no correction"
        return self.context.correction.client_update(
            self.context.correction_state,  # not the copy in the buffers, which the next round overwrites
            self.old_states.get(client.client_id, {}).get(CORRECTION_STATE),
            sent_W[: self.buffers.num_trainable],
            client.num_steps * float(self.context.lr),
            self._full_gradients.pop(client.client_id, None),
        )
