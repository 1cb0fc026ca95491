"""What clients bring to a round and keep from it, in the lane where they train: personal layers, control variates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyeyes.core.engine import RoundContext
from manyeyes.core.plan import ClientPlan
from manyeyes.core.state import ClientStates
from manyeyes.engines.gpu.stream import RoundBuffers, Stream
from manyeyes.engines.reference import ReferenceEngine, persisted_opt_state


class ClientStateTransfer:
    """Plain launches beside the captured ones, only for algorithms whose clients keep something or report."""

    def __init__(
        self, reference: ReferenceEngine, shared: RoundBuffers, work: RoundContext, clients: ClientStates
    ) -> None:
        self.reference, self.shared, self.work, self.clients = reference, shared, work, clients
        self.keeps: dict[int, dict[str, Tensor]] = {}
        self._needed = (
            work.personal_mask is not None or work.correction is not None or work.client_optimizer.persist_state
        )
        self._gradients: dict[int, Tensor] = {}

    def load(self, lane: Stream, members: Sequence[ClientPlan]) -> None:
        """What the clients kept last time goes into the lane where they begin."""
        if not self._needed:
            return
        for k, client in enumerate(members):
            own = self.clients.get(client.client_id, {})
            lane.load_client_state(k, own.get("personal"), own.get("control"), persisted_opt_state(own))
            if self.work.correction is not None and self.work.correction.needs_full_gradient:
                weights = self.shared.weights if lane.start is None else lane.start[k]
                theta, statistics = weights[: self.shared.num_trainable], weights[self.shared.num_trainable :]
                self._gradients[client.client_id] = self.reference.full_gradient(theta, statistics, client)

    def store(self, lane: Stream, members: Sequence[ClientPlan]) -> None:
        """What the clients keep and report, as far as it is finite."""
        if not self._needed:
            return
        end_KW, update_KW = lane.weights(len(members)), lane.update(len(members))
        sent_KW = update_KW if self.shared.mask is None else update_KW * self.shared.mask
        for k, client in enumerate(members):
            keeps: dict[str, Tensor] = {}
            report = None
            if self.shared.personal_indices is not None:
                keeps["personal"] = end_KW[k].index_select(0, self.shared.personal_indices)
            if self.work.correction is not None:
                own = self.clients.get(client.client_id, {}).get("control")
                control, report = self.work.correction.client_update(
                    self.work.correction_state,  # not the lanes' copy, which the next round overwrites: it may be kept
                    own,
                    sent_KW[k, : self.shared.num_trainable],
                    client.num_steps * float(self.work.lr),
                    self._gradients.pop(client.client_id, None),
                )
                keeps |= {} if control is None else {"control": control}
            if self.work.client_optimizer.persist_state:
                keeps |= {f"slot{i}": slot[k].clone() for i, slot in enumerate(lane.opt_state)}
            tensors = [update_KW[k], *keeps.values(), *(() if report is None else (report,))]
            sound = torch.stack([torch.isfinite(torch.linalg.vector_norm(t)) for t in tensors]).all()
            sound &= torch.isfinite(lane.losses[k])
            lane.finite[k] = sound
            if report is not None:
                report = torch.where(sound, report, 0)
                lane.reports = report if lane.reports is None else lane.reports + report
            if keeps:
                self.keeps[client.client_id] = keeps
