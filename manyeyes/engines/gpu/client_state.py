"""Moves the states of clients into the streams where they train, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor

from manyeyes.core.plan import ClientPlan
from manyeyes.core.state import (
    CORRECTION_STATE,
    PERSONAL_WEIGHTS,
    ClientState,
    ClientStates,
    RoundContext,
    make_client_state,
    persisted_opt_state,
)
from manyeyes.engines.gpu.stream import RoundBuffers, Stream
from manyeyes.engines.reference import ReferenceEngine


class ClientStateTransfer:
    """Loads and stores states between captured steps, only if clients have state or corrections upload something."""

    def __init__(
        self, reference: ReferenceEngine, buffers: RoundBuffers, context: RoundContext, client_states: ClientStates
    ) -> None:
        self.reference, self.buffers, self.context, self.old_states = reference, buffers, context, client_states
        self.new_states: dict[int, ClientState] = {}
        self._persists_opt_state = context.client_optimizer.persist_state
        self._is_needed = (
            context.personal_mask is not None or context.correction is not None or self._persists_opt_state
        )
        self._full_gradients: dict[int, Tensor] = {}

    def load(self, stream: Stream, clients: Sequence[ClientPlan]) -> None:
        """Load the clients' states into the stream where they begin."""
        if not self._is_needed:
            return
        correction = self.context.correction
        for k, client in enumerate(clients):
            state = self.old_states.get(client.client_id, {})
            if PERSONAL_WEIGHTS in state:
                stream.load_personal_weights(k, state[PERSONAL_WEIGHTS])
            if CORRECTION_STATE in state:
                self._load_offset(stream, k, state[CORRECTION_STATE])
            for tensor, persisted in zip(stream.opt_state, persisted_opt_state(state), strict=False):
                tensor[k] = persisted
            if correction is not None and correction.needs_full_gradient:
                weights = self.buffers.weights if stream.start is None else stream.start[k]
                full_gradient = self.reference.full_gradient(weights, client, self.context)
                self._full_gradients[client.client_id] = full_gradient

    def _load_offset(self, stream: Stream, k: int, correction_state: Tensor) -> None:
        correction = self.context.correction
        assert correction is not None, "a client has the state of a correction and the round has no correction"
        offset = correction.offset(self.buffers.correction_state, correction_state)
        if stream.offset is not None:
            stream.offset[k] = 0 if offset is None else offset
        elif offset is not None:
            name = type(correction).__name__
            raise ValueError(
                f"{name}.offset returns a tensor now and returned None both for a new client and for the client state "
                f"that {name}.client_update makes of an update of ones, so this engine has no memory for it: return "
                "zeros there, or use engine=reference."
            )

    def store(self, stream: Stream, clients: Sequence[ClientPlan]) -> None:
        """Store the clients' new states and add up their uploads, where they are finite."""
        if not self._is_needed:
            return
        weights_KW, update_KW = stream.weights(len(clients)), stream.update(len(clients))
        sent_KW, personal_indices = self.buffers.sent(update_KW), self.buffers.personal_indices
        for k, client in enumerate(clients):
            correction_state, upload = self._update_correction(client, sent_KW[k])
            state = make_client_state(
                personal_weights=None if personal_indices is None else weights_KW[k].index_select(0, personal_indices),
                correction_state=correction_state,
                opt_state=tuple(tensor[k].clone() for tensor in stream.opt_state) if self._persists_opt_state else (),
            )
            tensors = [stream.losses[k], update_KW[k], *state.values(), *(() if upload is None else (upload,))]
            is_finite = torch.stack([torch.isfinite(torch.linalg.vector_norm(tensor)) for tensor in tensors]).all()
            stream.finite[k] = is_finite
            if upload is not None:
                upload = torch.where(is_finite, upload, 0)
                stream.uploads = upload if stream.uploads is None else stream.uploads + upload
            if state:
                self.new_states[client.client_id] = state

    def _update_correction(self, client: ClientPlan, sent_W: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the new state of a client's correction, and its upload."""
        if self.context.correction is None:
            return None, None
        return self.context.correction.client_update(
            self.context.correction_state,  # not the copy in the buffers, which the next round overwrites
            self.old_states.get(client.client_id, {}).get(CORRECTION_STATE),
            sent_W[: self.buffers.num_trainable],
            client.num_steps * float(self.context.lr),
            self._full_gradients.pop(client.client_id, None),
        )
